"""Policies that workers cannot load, or that fail while they are in force: the job goes on under the one before."""

import os
import signal
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import polyrhythm
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.testing.processes import first_child
from tests import wrong_policies
from tests.runtime.jobs import COORDINATOR_PID, Numbered, job, make_model, make_optimizer, step

SAMPLES = 120

NOT_EVERYWHERE = """
import os
from polyrhythm.policies import ASP

if os.environ.get("RANK") == "1":
    {trouble}

class Mine(ASP):
    summary = "is not on every host"
"""

SLOWLY = """
import os, time
from pathlib import Path
from polyrhythm.policies import ASP

while os.environ.get("RANK") == "1" and not Path({until!r}).exists():
    time.sleep(0.005)

class Mine(ASP):
    summary = "is not there at once"
"""


def train(rank: int, name: str, act: Callable[[Any, str], str]) -> tuple[int, str, Status]:
    """One epoch; in its third step rank 0 acts. Its samples, what it was told, and what the coordinator says."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1)
    told = ""
    with polyrhythm.session(model, optimizer) as session:
        for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), batch_size=2)):
            if rank == 0 and number == 2:
                told = act(session, name)
            step(model, optimizer, x, y)
        state = steer.status(steer.at(name))
    return int(session.metrics["samples"]), told, state


def play(policy: str, act: Callable[[Any, str], str], **settings: Any) -> tuple[str, Status]:
    """What rank 0 was told, and the coordinator's last word; every sample is made once."""
    name = f"policies-{uuid.uuid4().hex}"
    with job(train, 3, name, act, name=name, policy=policy, allow_policy_files=True, **settings) as running:
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), "\n".join(outcome.traceback for outcome in outcomes)
    (_, told, state), *_ = (outcome.value for outcome in outcomes)
    assert isinstance(state, Status)
    assert (state.samples, state.skipped) == (SAMPLES, 0)
    return told, state


class Ask:
    """Steers the job from outside; the refusal, if there is one."""

    def __init__(self, policy: str) -> None:
        self._policy = policy

    def __call__(self, session: Any, name: str) -> str:
        try:
            steer.switch(steer.at(name), self._policy)
        except UsageError as error:
            return str(error)
        return ""


class AskAndKill(Ask):
    """The coordinator is killed as soon as it has accepted."""

    def __call__(self, session: Any, name: str) -> str:
        told = super().__call__(session, name)
        os.kill(first_child(int(os.environ[COORDINATOR_PID])), signal.SIGKILL)
        return told


class Want:
    """The script asks by itself, and stays where it is until all workers have answered."""

    def __init__(self, policy: str) -> None:
        self._policy = policy

    def __call__(self, session: Any, name: str) -> str:
        session.switch(self._policy)
        while not ((state := steer.status(steer.at(name))).switching_to or state.notices):
            pass
        return ""


class WantBoth(Want):
    """The script wants another policy before the workers have answered about the first."""

    def __init__(self, policy: str, later: str) -> None:
        super().__init__(policy)
        self._later = later

    def __call__(self, session: Any, name: str) -> str:
        session.switch(self._policy)
        session.switch(self._later)
        while len((state := steer.status(steer.at(name))).notices) + bool(state.switching_to) < 2:
            pass
        return ""


@pytest.mark.parametrize("trouble", ["raise RuntimeError('not here')", "raise SystemExit('not here')"])
def test_a_policy_that_one_worker_cannot_load_is_refused(trouble: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NOT_EVERYWHERE.format(trouble=trouble))
    told, state = play("bsp", Ask(f"{file}:Mine"))
    assert f"the switch to {file}:Mine is refused: rank 1: " in told
    assert "not here" in told
    assert (state.policy, state.phase) == ("bsp", 1)
    assert [notice in told for notice in state.notices] == [True]


def test_a_policy_that_all_can_load_is_taken(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(NOT_EVERYWHERE.format(trouble="pass"))
    told, state = play("bsp", Ask(f"{file}:Mine"))
    assert (told, state.policy, state.notices) == ("", f"{file}:Mine", ())


def test_an_earlier_policy_comes_if_a_worker_cannot_load_a_later_one(tmp_path: Path) -> None:
    """That is asked for while the worker loads the earlier one."""
    mine, other, until = tmp_path / "mine.py", tmp_path / "other.py", str(tmp_path / "asked")
    mine.write_text(SLOWLY.format(until=until))
    other.write_text(f"open({until!r}, 'w').close()" + NOT_EVERYWHERE.format(trouble="raise RuntimeError('not here')"))
    _, state = play("bsp", WantBoth(f"{mine}:Mine", f"{other}:Mine"))
    (notice,) = state.notices
    assert notice.startswith(f"the switch to {other}:Mine is refused: rank 1: ")
    assert state.policy == f"{mine}:Mine"


@pytest.mark.parametrize(
    ("first", "wrong"),
    [
        ("bsp", "Raises"),
        ("bsp", "StartsAStranger"),
        ("local:4", "RaisesByTheClock"),
    ],
)
def test_one_that_fails_gives_way_to_the_one_before(first: str, wrong: str) -> None:
    spec = f"{wrong_policies.__name__}:{wrong}"
    _, state = play(first, Want(spec))
    (notice,) = state.notices
    assert "at Report of worker 1 with clock" in notice
    assert notice.endswith(f"{parse_policy(spec).spec} is out of force, and {first} goes on")
    assert (state.policy, state.phase) == (first, 3)


@pytest.mark.parametrize(("first", "wrong"), [("bsp", "Raises"), ("asp", "RaisesByTheClock")])
def test_the_next_coordinator_knows_the_one_before(first: str, wrong: str) -> None:
    told, state = play(first, AskAndKill(f"{wrong_policies.__name__}:{wrong}"), max_coordinator_restarts=9)
    assert told == ""
    assert [notice.rpartition(", and ")[2] for notice in state.notices] == [f"{first} goes on"]
    assert (state.policy, state.phase) == (first, 3)


def test_one_that_cannot_begin_is_refused() -> None:
    _, state = play("bsp", Want(f"{wrong_policies.__name__}:StartsBadly"))
    (notice,) = state.notices
    assert "StartsBadly is refused: policy" in notice
    assert "raised ValueError('oops') in init" in notice
    assert (state.policy, state.phase) == ("bsp", 1)
