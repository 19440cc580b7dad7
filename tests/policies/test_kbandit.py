import re
from collections.abc import Callable
from typing import Any

import pytest

from polyrhythm.core import Cluster, Event, Joined, Left, Policy, Proceed, Report
from polyrhythm.errors import SpecError
from polyrhythm.policies import SSP, KBandit, KGroup, parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer

PACE_S = (1.0, 1.1, 1.2, 6.0)
SCRIPT = ClusterScript(4, tuple((pace,) for pace in PACE_S), total_samples=3000, dataset_samples=100)


def rule_after(policy: KBandit, *reports: Report, workers: int = 4) -> Policy[Any]:
    """The policy in force once these reports have come."""
    state, _ = policy.decide(policy.init(Cluster(workers)), Joined(tuple(range(workers)), 0.0))
    for report in reports:
        state, _ = policy.decide(state, report)
    return state.charge.policy


def policies(policy: KBandit, loss: Callable[[Policy[Any], float], float], seconds: int) -> list[Policy[Any]]:
    """The policy in force at each report of two workers that report in turn; `loss` gives the decrease per second."""
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    seen, level, running = [], 1000.0, {0: 0, 1: 0}
    for second in range(1, seconds):
        level *= 1 - loss(state.charge.policy, float(second))
        worker = min(running, key=lambda each: running[each])
        clock = running.pop(worker) + 1
        state, decisions = policy.decide(state, Report(worker, clock, float(second), step_s=1.0, loss=level))
        running |= {worker: clock}
        seen.append(state.charge.policy)
        assert any(isinstance(decision, Proceed) for decision in decisions) or len(running) > 0
    return seen


def test_starts_with_the_number_of_healthy_workers() -> None:
    reports = [Report(worker, 1, 1.0 + worker / 10, step_s=PACE_S[worker], loss=1.0) for worker in range(3)]
    assert rule_after(KBandit(window=1), *reports) == KGroup(1)
    assert rule_after(KBandit(window=1), *reports, Report(0, 2, 2.0, step_s=1.0, loss=1.0)) == KGroup(3)


def test_without_losses_it_stays_there() -> None:
    stage = ScriptPlayer(KBandit(window=1, every=2), SCRIPT)
    stage.policy.traits.needs  # noqa: B018
    reports = [Report(at % 3, 1 + at // 3, 1.0 + at, step_s=1.0) for at in range(60)]
    assert rule_after(KBandit(window=1, every=2), *reports, workers=3) == KGroup(3)


def test_the_end_of_an_epoch_restarts_no_more_than_the_window() -> None:
    policy = KBandit(window=1, every=2)
    reports = [Report(worker, 1, 1.0 + worker / 10, step_s=1.0, loss=1.0) for worker in range(3)]
    first, *others = (Left(worker, 2.0, 1, "finished") for worker in range(3))
    late = Report(1, 2, 2.5, step_s=1.0, loss=1.0)  # of one that goes on when another has finished
    events: list[Event] = [*reports, first, late, *others, Joined((0, 1, 2), 3.0)]
    state, _ = policy.decide(policy.init(Cluster(3)), Joined((0, 1, 2), 0.0))
    for event in events:
        state, _ = policy.decide(state, event)
    assert (state.arms[0], len(state.charge.roll.away), state.window.count) == (KGroup(3), 0, 0)
    state, _ = policy.decide(state, Joined((3,), 4.0))
    assert state.arms == ()


def test_who_does_not_come_back_with_the_others_restarts_it_all() -> None:
    policy = KBandit(window=1, every=2)
    events: list[Event] = [Report(worker, 1, 1.0 + worker / 10, step_s=1.0, loss=1.0) for worker in range(3)]
    state, _ = policy.decide(policy.init(Cluster(3)), Joined((0, 1, 2), 0.0))
    for event in (*events, *(Left(worker, 2.0, 1, "finished") for worker in range(3)), Joined((0, 1), 3.0)):
        state, _ = policy.decide(state, event)
    assert (state.arms, state.window.size) == ((), 2)


def test_a_better_value_takes_over() -> None:
    policy = KBandit(window=4, every=2, values="1/2", base=KGroup(1))
    good = KGroup(2)
    seen = policies(policy, lambda policy, second: 0.02 if policy == good else 0.005, 400)
    assert seen[0] == KGroup(1)
    assert set(seen[-100:]) == {good}


def test_a_worse_value_is_tried_no_more() -> None:
    policy = KBandit(window=4, every=2, values="1/2", base=KGroup(1))
    seen = policies(policy, lambda policy, second: 0.02 if policy == KGroup(1) else 0.005, 400)
    assert KGroup(2) in seen
    assert set(seen[-100:]) == {KGroup(1)}


def test_a_newcomer_starts_it_anew() -> None:
    policy = KBandit(values="1/2")
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    for at in range(1, 40):
        state, _ = policy.decide(state, Report(at % 2, at, float(at), loss=1.0 / at))
    joined, decisions = policy.decide(state, Joined((2,), 40.0, clock=10))
    assert decisions == (Proceed((2,)),)
    assert (joined.window.count, joined.window.size, joined.match.before) == (0, 9, None)
    left, _ = policy.decide(joined, Left(2, 41.0, 10))
    assert left.window.size == 6


def test_the_knob_of_another_rule() -> None:
    policy = parse_policy("kbandit:values=2/5,base=(ssp:3)")
    assert isinstance(policy, KBandit)
    assert policy.listed() == (SSP(2), SSP(5))
    assert parse_policy(policy.spec) == policy


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("kbandit:0", "window must be a whole number of at least 1 but got 0"),
        ("kbandit:every=1", "every must be a whole number of at least 2 but got 1"),
        ("kbandit:z=0", "z must be above 0"),
        ("kbandit:values=2/x", "values must be numbers with / between them but got '2/x'"),
        ("kbandit:values=0/2", "k must be a whole number of at least 1 but got 0"),
        ("kbandit:base=(ssp:3)", "values are needed for base ssp:3"),
        ("kbandit:values=1/2,base=asp", "base asp has no parameter to choose"),
        ("kbandit:values=1/2,base=(local:3)", "base must exchange gradients"),
    ],
)
def test_refused(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=re.escape(message)):
        parse_policy(spec)
