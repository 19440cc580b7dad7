"""The example of the guide: it conforms, does what it says, and the guide shows this very code."""

import re
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.core import Alarm, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync, Wake
from polyrhythm.errors import SpecError
from polyrhythm.policies import parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer, conformance

ROOT = Path(__file__).parents[2]
FILE = ROOT / "examples" / "custom_policy.py"
GUIDE = (ROOT / "docs" / "guides" / "write-a-policy.md").read_text(encoding="utf-8")


def wait_limit(limit_s: float) -> Policy[Any]:
    return parse_policy(f"{FILE}:WaitLimit:{limit_s}")


@pytest.mark.parametrize("limit_s", [0.0, 0.5, 3.0])
def test_conformance(limit_s: float) -> None:
    conformance(wait_limit(limit_s))()


def decided(*events: Event) -> list[Decisions]:
    policy = wait_limit(2.0)
    state, result = policy.init(ScriptPlayer(policy, ClusterScript()).cluster), []
    for event in (Joined((0, 1, 2), 0.0), *events):
        state, decisions = policy.decide(state, event)
        result.append(decisions)
    return result[1:]


def test_everyone_in_time() -> None:
    events: list[Event] = [Report(1, 1, 1.0), Report(0, 1, 1.5), Report(2, 1, 2.9), Alarm(3.0)]
    assert decided(*events) == [(Wake(3.0),), (), (Sync((0, 1, 2)), Proceed((0, 1, 2))), ()]


def test_time_is_up() -> None:
    events: list[Event] = [Report(1, 1, 1.0), Report(0, 1, 1.5), Alarm(3.0), Report(2, 1, 9.0)]
    assert decided(*events) == [(Wake(3.0),), (), (Sync((0, 1)), Proceed((0, 1))), (Wake(11.0),)]


def test_an_alarm_of_an_earlier_round_opens_nothing() -> None:
    everyone: list[Event] = [Report(worker, 1, 1.0) for worker in range(3)]
    assert decided(*everyone, Report(0, 2, 2.5), Alarm(3.0))[-2:] == [(Wake(4.5),), ()]


def test_death_of_the_last() -> None:
    events: list[Event] = [Report(1, 1, 1.0), Left(0, 1.1, 0), Left(2, 1.2, 0)]
    assert decided(*events)[-1] == (Sync((1,)), Proceed((1,)))


def test_impossible_limit() -> None:
    with pytest.raises(SpecError, match="limit_s must be at least 0 and finite but got inf"):
        parse_policy(f"{FILE}:WaitLimit:inf")


def test_guide_shows_the_example() -> None:
    assert FILE.read_text(encoding="utf-8") in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)


def test_test_of_the_guide_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The two lines for a user's own test file."""
    monkeypatch.syspath_prepend(str(FILE.parent))
    (code,) = (code for code in re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL) if "conformance" in code)
    names: dict[str, Any] = {}
    exec(code, names)
    names["test_wait_limit"]()
