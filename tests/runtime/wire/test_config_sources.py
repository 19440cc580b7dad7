"""The order of the places that a setting can come from, and the line about two that differ."""

import re
from itertools import combinations
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch.job_file import SEARCH_VARIABLES
from polyrhythm.runtime.launch.torchrun import LaunchOrder, read_command
from polyrhythm.runtime.wire.config_sources import (
    BESIDE,
    HANDED_ON,
    LOOP_FROM,
    OWN,
    PILOT,
    VARIABLES,
    Completion,
    combined,
    epochs_of_job,
    from_environment,
    handed_on,
    misspelt,
    session_arguments,
)
from polyrhythm.runtime.wire.job_config import BY_SCRIPT, Given, JobConfig, make_config

PLACES = ("the script's session", "POLYRHYTHM_{}", "job.toml", "--{}")
"""From the weakest to the strongest."""

VALUES = {
    "policy": ("asp", "ssp:3", "local:4", "bsp"),
    "epochs": (2, 3, 4, 5),
    "compress": ("fp16", "bf16", "int8", "topk:0.01"),
    "on_divergence": ("end", "rollback", "ignore", "end"),
    "shards": (0, 2, 3, 4),
}
"""A value for each place."""


def called(monkeypatch: pytest.MonkeyPatch, name: str, chosen: dict[str, object]) -> LaunchOrder:
    """A call of ``polyrhythm run`` with a setting in these places, the session's aside."""
    flags = []
    for place, value in chosen.items():
        match place:
            case "job.toml":
                key = name.replace("_", "-")
                Path("job.toml").write_text(f"{key} = {value!r}\n", encoding="utf-8")
                flags += ["--config", "job.toml"]
            case "--{}":
                flags += [f"--{name.replace('_', '-')}", str(value)]
            case "POLYRHYTHM_{}":
                monkeypatch.setenv(f"POLYRHYTHM_{name.upper()}", str(value))
    return read_command([*flags, "train.py"])


def where(place: str, name: str) -> str:
    return place.format(name.upper() if place.isupper() else name.replace("_", "-"))


@pytest.mark.parametrize(("weak", "strong"), [*combinations(range(len(PLACES)), 2)])
@pytest.mark.parametrize("name", VALUES)
def test_the_nearer_to_the_call_the_stronger(
    name: str, weak: int, strong: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if weak == 0 and name not in BY_SCRIPT:
        weak = strong
    monkeypatch.chdir(tmp_path)
    chosen = {PLACES[number]: VALUES[name][number] for number in (weak, strong)}
    plan = called(monkeypatch, name, chosen)
    said = list(plan.overruled)
    completion = Completion(plan.config, said.append)
    completion.heed(0, {name: VALUES[name][weak]} if weak == 0 else {})
    config = completion.config
    assert getattr(config, name) == VALUES[name][strong]
    assert config.given[name] == where(PLACES[strong], name).replace("POLYRHYTHM_{}", "")
    wanted = f"{name} {VALUES[name][strong]} of {where(PLACES[strong], name)} holds; "
    wanted += f"{VALUES[name][weak]} of {where(PLACES[weak], name)} is overruled"
    assert said == ([wanted] if VALUES[name][weak] != VALUES[name][strong] else [])


LAYERS = st.lists(st.one_of(st.none(), st.sampled_from(["bsp", "asp", "ssp:3", "ssp:s=3"])), min_size=4, max_size=4)


@given(LAYERS)
def test_the_last_layer_that_chooses_holds(values: list[str | None]) -> None:
    layers = [{} if value is None else {"policy": Given(value, f"place {k}")} for k, value in enumerate(values)]
    chosen, lines = combined(*layers)
    present = [(k, value) for k, value in enumerate(values) if value is not None]
    assert list(chosen.values()) == [Given(value, f"place {k}") for k, value in present[-1:]]
    differ = {value.replace("s=", "") for _, value in present}
    assert len(lines) == (len(differ) > 1)
    beaten = [f"place {k}" for k, value in present if value.replace("s=", "") != present[-1][1].replace("s=", "")]
    assert all(place in lines[0] for place in beaten)


def test_a_script_chooses_what_nobody_else_has_chosen() -> None:
    said: list[str] = []
    completion = Completion(JobConfig(shards=2, given={"shards": "--shards"}), said.append)
    assert completion.heed(1, session_arguments(policy="ssp:s=3", epochs=4, compress=None))
    config = completion.config
    assert (config.policy, config.epochs, config.compress, config.shards) == ("ssp:3", 4, "none", 2)
    assert config.given == {"shards": "--shards", "policy": PLACES[0], "epochs": PLACES[0]}
    assert not completion.heed(0, session_arguments(policy="ssp:3", epochs=4))
    assert not completion.heed(2, session_arguments(policy="asp"))
    assert said == ["rank 2 gives its session other arguments than rank 1, whose arguments hold"]
    assert completion.config is config


def test_a_run_of_a_search_keeps_no_checkpoints_for_its_script(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = {"policy": "asp", "checkpoint": "kept", "every": "5m"}
    assert session_arguments(**arguments) == arguments
    monkeypatch.setenv(PILOT, "1")
    assert session_arguments(**arguments) == {"policy": "asp"}


def test_one_that_comes_late_may_have_fewer_epochs_left() -> None:
    said: list[str] = []
    completion = Completion(JobConfig(), said.append)
    assert completion.heed(0, epochs_of_job({"epochs": 8, LOOP_FROM: 1}, None))
    assert not completion.heed(1, epochs_of_job({"epochs": 7, LOOP_FROM: 2}, 1))
    assert said == []
    assert not completion.heed(1, epochs_of_job({"epochs": 8, LOOP_FROM: 2}, 1))
    assert said == ["rank 1 gives its session other arguments than rank 0, whose arguments hold"]


def test_wrong_arguments_of_a_session_are_one_line() -> None:
    for arguments, message in (
        ({"epochs": 0}, "epochs must be at least 1 but got 0"),
        ({"epochs": "3"}, "epochs must be a whole number but got '3'"),
        ({"policy": 3}, "policy must be a text but got 3"),
    ):
        with pytest.raises(PolyrhythmError, match=f"^{message}$"):
            session_arguments(**arguments)


def test_wrong_variables_are_one_line() -> None:
    with pytest.raises(PolyrhythmError, match=r"^POLYRHYTHM_SHARDS must be a whole number but got 'x'$"):
        from_environment({"POLYRHYTHM_SHARDS": "x"})
    with pytest.raises(PolyrhythmError, match=rf"^{HANDED_ON} is not what polyrhythm run has set: .*; unset it$"):
        handed_on({HANDED_ON: "{"})


def test_a_spec_that_cannot_be_read_is_said_of_its_variable() -> None:
    for name, spec in (("policy", "ssp:x"), ("compress", "topk:9"), ("compensation", "x")):
        variable = VARIABLES[name]
        with pytest.raises(PolyrhythmError, match=f"^{variable}: .*{spec}"):
            make_config(from_environment({variable: spec}))


def test_torchruns_own_variables_count() -> None:
    torchruns = {"PET_NNODES": "2", "PET_NODE_RANK": "1", "PET_STANDALONE": "1"}
    found = from_environment({**torchruns, "POLYRHYTHM_FULL_DUPLEX": "1"})
    assert {name: value for name, (value, _) in found.items()} == {
        "nnodes": "2",
        "node_rank": 1,
        "standalone": True,
        "full_duplex": True,
    }


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("POLCY", "POLICY"),
        ("TOKNE", "TOKEN"),
        ("PROT", "PORT"),
        ("CAHCE", "CACHE"),
        ("RUSN", "RUNS"),
        ("STOER", "STORE"),
        ("LINK_BYTES_PER_SEC", "LINK_BYTES_PER_S"),
        ("TLS_CERTS", "TLS_CERT"),
    ],
)
def test_a_misspelt_variable_is_said_with_the_name_that_is_near(name: str, meant: str) -> None:
    said = misspelt({f"POLYRHYTHM_{name}": "1"}, SEARCH_VARIABLES.values())
    assert said == (f"POLYRHYTHM_{name} does nothing: did you mean POLYRHYTHM_{meant}?",)


@pytest.mark.parametrize("name", ["TOKEN", "PORT", "RUNS", "RUN_ID", "HOST", "HOSTS", "TEST_MARK", "FUTURE"])
def test_a_variable_that_is_known_or_near_none_is_not_said(name: str) -> None:
    """It may be meant for a later version, or for the script."""
    assert not misspelt({f"POLYRHYTHM_{name}": "1"}, SEARCH_VARIABLES.values())


def test_all_variables_of_ours_are_known() -> None:
    package = Path(polyrhythm.__file__).parent
    named = {name for path in package.rglob("*.py") for name in re.findall(r'"(POLYRHYTHM_[A-Z_]+)"', path.read_text())}
    known = {*VARIABLES.values(), *SEARCH_VARIABLES.values(), *BESIDE, *OWN}
    assert named - known == {"POLYRHYTHM_POLCY"}, "which stands in an example"
    assert {*BESIDE, *OWN} <= named
