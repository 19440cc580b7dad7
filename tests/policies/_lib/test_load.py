"""Policies of a user's own: files, modules, entry points, and one clear line for everything that goes wrong."""

import pickle
import signal
import sys
from functools import cached_property
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest

from polyrhythm.core import Cluster, Decisions, Event, Policy, Traits
from polyrhythm.errors import PolicyError, SpecError
from polyrhythm.policies import ASP, BUILT_IN, KNOWN, parse_policy
from polyrhythm.policies._lib import load
from polyrhythm.policies._lib.load import Catalogue

SOURCE = '''
from dataclasses import dataclass
from polyrhythm.core import Policy, Proceed
from polyrhythm.policies import ASP

@dataclass(frozen=True)
class State:
    seen: int

@dataclass(frozen=True)
class Mine(Policy[State]):
    """A policy."""
    k: int = 1
    b: float = 0.5
    def init(self, cluster):
        return State(self.k)
    def decide(self, state, event):
        return state, ()

class Half(Policy):
    def init(self, cluster):
        return None

class Other:
    pass
'''


HEAD = """from dataclasses import dataclass
from polyrhythm import Bounds, Traits
from polyrhythm.policies import ASP
"""
WRONG = {
    "thawed": "@dataclass\nclass Mine(ASP):\n    k: int = 1",
    "nameless": "@dataclass(frozen=True)\nclass Mine(ASP):\n    k: 'Nope' = 1",
    "traits": "class Mine(ASP):\n    traits = {'cancels': True}",
    "method": "class Mine(ASP):\n    def traits(self):\n        return Traits()",
    "bounds": "class Mine(ASP):\n    bounds = Bounds(lead=1)",
    "placement": "class Mine(ASP):\n    traits = Traits(placement='everywhere')",
    "needs": "class Mine(ASP):\n    traits = Traits(needs='loss')",
    "exchanges": "class Mine(ASP):\n    traits = Traits(exchanges={'x'})",
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "my_policy.py").write_text(SOURCE)
    (tmp_path / "my_package").mkdir()
    (tmp_path / "my_package" / "rules.py").write_text(SOURCE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


@pytest.mark.parametrize("place", ["my_policy.py", "./my_policy.py", "my_package/rules.py", "my_package.rules"])
def test_file_or_module(folder: Path, place: str) -> None:
    policy = parse_policy(f"{place}:Mine:k=3,b=0.25")
    assert vars(policy) == {"k": 3, "b": 0.25}
    assert parse_policy(f"{place}:Mine").spec == f"{place}:Mine:1"
    assert parse_policy(policy.spec) == policy


def test_absolute_path(folder: Path) -> None:
    assert parse_policy(f"{folder}/my_policy.py:Mine:4") == parse_policy("my_policy.py:Mine:4")


def test_states_are_picklable(folder: Path) -> None:
    state = parse_policy("./my_policy.py:Mine:k=3").init(Cluster(workers=1))
    assert pickle.loads(pickle.dumps(state)) == state  # noqa: S301


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("./my_policy.py:Mime", r"has no class 'Mime': did you mean Mine\?"),
        ("./my_policy.py:Half", "lacks decide"),
        ("./my_policy.py:Other", "is not a policy; derive the class from"),
        ("./my_policy.py", "names no class; write './my_policy.py:MyPolicy'"),
        ("./my_policy.py:", "has no class ''"),
        ("bsp@0.5", r"^unknown policy 'bsp@0.5': did you mean bsp\?"),
        ("0.5", "^unknown policy '0.5': known: asp"),
        ("greedy:0.5", "^policy of policy 'greedy:0.5': unknown policy '0.5'"),
        ("./none.py:Mine", r"policy file './none.py' does not exist; a relative path starts at"),
        ("my_package.none:Mine", "cannot be imported: ModuleNotFoundError"),
        ("./broken.py:Mine", "cannot be loaded: NameError"),
        ("./broken.py:Mine", r"\(broken.py:2\)$"),
        ("./thawed.py:Mine", r"cannot be loaded: TypeError\('cannot inherit .*'\) \(thawed.py:4\)$"),
        ("./unwritten.py:Mine", r"cannot be loaded: SyntaxError: .* \(unwritten.py, line 1\)$"),
        ("./notes.md:Mine", r"^policy file './notes.md' is no Python file; end its name in .py$"),
        ("./my\0policy.py:Mine", r"^policy file './my\\x00policy.py' does not exist"),
        ("./nameless.py:Mine", r"Mine' has an annotation that cannot be read: name 'Nope' is not defined$"),
        ("./traits.py:Mine", r"cannot be loaded: Mine.traits must be Traits\(...\), or a property .* but is \{'c"),
        ("./method.py:Mine", r"cannot be loaded: Mine.traits must be Traits\(...\), or a property .* but is <function"),
        (
            "./bounds.py:Mine",
            r"cannot be loaded: Mine.bounds must be a method that returns Bounds\(...\) but is Bounds",
        ),
        ("./placement.py:Mine", "cannot be loaded: Traits.placement must be one of clock, every_rank, coordinator but"),
        (
            "./needs.py:Mine",
            "cannot be loaded: Traits.needs must be a set of loss, grad_sq_norm, probe_loss but got 'loss'",
        ),
        (
            "./exchanges.py:Mine",
            r"cannot be loaded: Traits.exchanges must be a set of gradients, replicas but got \{'x'\}",
        ),
        ("./my_policy.py:Mine:q=3", r"has no parameter 'q'"),
    ],
)
def test_one_clear_line(folder: Path, spec: str, message: str) -> None:
    (folder / "broken.py").write_text("import json\nundefined")
    (folder / "notes.md").write_text("")
    (folder / "unwritten.py").write_text("class Mine(:\n")
    for name, body in WRONG.items():
        (folder / f"{name}.py").write_text(f"{HEAD}{body}\n")
    for _ in range(2):
        with pytest.raises(SpecError, match=message) as error:
            parse_policy(spec)
        assert "\n" not in str(error.value)


def test_traits_of_a_property_are_looked_at_when_they_are_asked_for() -> None:
    class Forgets(ASP):
        name = "forgets"

        @property
        def traits(self) -> Any:  # type: ignore[override]
            return None

    class Fails(Forgets):
        @property
        def traits(self) -> Any:  # type: ignore[override]
            raise KeyError("no")

    with pytest.raises(
        PolicyError, match=r"^policy forgets broke its contract: traits must be Traits\(...\) but is None"
    ):
        print(Forgets().traits)
    with pytest.raises(PolicyError, match=r"^policy forgets raised KeyError\('no'\) in traits \(test_load.py:\d+\)$"):
        print(Fails().traits)


def test_an_interrupt_while_traits_are_asked_for_is_the_users_where_ctrl_c_reaches() -> None:
    class Interrupted(ASP):
        name = "interrupted"

        @property
        def traits(self) -> Any:  # type: ignore[override]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        print(Interrupted().traits)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with pytest.raises(PolicyError, match=r"^policy interrupted raised KeyboardInterrupt\(\) in traits"):
            print(Interrupted().traits)
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize(
    "where", ["", "@dataclass(frozen=True)\nclass Mine(ASP):\n    def __post_init__(self):\n        "]
)
def test_what_is_no_exception_is_told_of_as_one(where: str, folder: Path) -> None:
    """As asyncio's CancelledError."""
    (folder / "cancelled.py").write_text(f"import asyncio\n{HEAD}{where}raise asyncio.CancelledError\n")
    with pytest.raises(SpecError, match=r"cannot be (loaded|made): CancelledError\(\) \(cancelled.py:\d+\)$"):
        parse_policy("./cancelled.py:Mine")


def test_traits_may_be_found_once() -> None:
    class Once(ASP):
        summary: ClassVar[str] = "has traits that are found once"

        @cached_property
        def traits(self) -> Traits:  # type: ignore[override]
            return Traits(cancels=True)

    assert Once().traits is not Once().traits
    assert Once().traits.cancels


def test_a_policy_without_a_name_has_that_of_its_class() -> None:
    class Nameless(Policy[None]):
        def init(self, cluster: Cluster) -> None:
            return None

        def decide(self, state: None, event: Event) -> tuple[None, Decisions]:
            return None, ()

    assert (Nameless().spec, Nameless().summary) == ("Nameless", "")


def test_a_broken_file_can_be_mended(folder: Path) -> None:
    (folder / "mended.py").write_text("undefined")
    with pytest.raises(SpecError):
        parse_policy("./mended.py:Mine")
    (folder / "mended.py").write_text(SOURCE)
    assert parse_policy("./mended.py:Mine:2").spec == "./mended.py:Mine:2"


def registered(monkeypatch: pytest.MonkeyPatch, value: str) -> Catalogue:
    entry = EntryPoint("theirs", value, load.GROUP)
    monkeypatch.setattr(load, "entry_points", lambda group: [entry] if group == load.GROUP else [])
    return Catalogue({"asp": ASP})


def test_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known = registered(monkeypatch, "my_package.rules:Mine")
    assert sorted(known) == ["asp", "theirs"]
    assert len(known) == 2
    assert known["theirs"]().spec == "theirs:1"
    assert known["theirs"] is sys.modules["my_package.rules"].Mine
    assert "ours" not in known


@pytest.mark.parametrize(("value", "message"), [("my_package.rules:Other", "is not a policy"), ("none:X", "cannot be")])
def test_bad_entry_point(folder: Path, monkeypatch: pytest.MonkeyPatch, value: str, message: str) -> None:
    with pytest.raises(SpecError, match=f"'theirs'.* {message}"):
        registered(monkeypatch, value)["theirs"]


def test_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(SpecError, match=r"unknown policy 'k-sink': did you mean k-sync\?"):
        parse_policy("k-sink:3")


def test_catalogue_lists_what_is_built_in() -> None:
    assert set(BUILT_IN) <= set(KNOWN)
    assert all(issubclass(cls, Policy) and cls.summary for cls in BUILT_IN.values())
