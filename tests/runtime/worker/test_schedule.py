"""Ranks that decide by themselves decide alike, and as the policy does when it is shown everyone's reports."""

from typing import Any

import pytest

from polyrhythm.core import Cluster, Decisions, Event, Joined, Policy, Proceed, Report, Sync
from polyrhythm.core.epoch_plan import EpochPlan
from polyrhythm.core.workload import SampleRange
from polyrhythm.policies import BSP, parse_policy
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.runtime.worker.schedule import LocalSchedule

MEMBERS = (0, 2, 5)
BATCH = 3
STEPS = 9
CLUSTER = Cluster(len(MEMBERS), BATCH, STEPS * BATCH * len(MEMBERS))
PLAN = EpochPlan((SampleRange(0, 10, 10 + CLUSTER.workload_samples),), len(MEMBERS), BATCH)


def followed(rank: int, policy: Policy[Any]) -> list[tuple[str, bool]]:
    """What a rank works on in each step, and whether an exchange follows."""
    schedule = LocalSchedule(policy, CLUSTER, MEMBERS, rank)
    schedule.start(PLAN)
    found: list[tuple[str, bool]] = []
    while not schedule.done:
        exchange = schedule.exchange
        found.append((exchange, schedule.advance() is not None))
    return found


def decided(policy: Policy[Any]) -> list[tuple[str, bool]]:
    """The same from the policy's own decisions."""
    state, decisions = policy.decide(policy.init(CLUSTER), Joined(MEMBERS, 0.0))
    found: list[tuple[str, bool]] = []
    for step in range(1, STEPS + 1):
        (exchange,) = {d.exchange for d in decisions if isinstance(d, Proceed)}
        decisions = ()
        for worker in MEMBERS:
            state, more = policy.decide(state, Report(worker, step, float(step), BATCH))
            decisions += more
        found.append((exchange, any(isinstance(d, Sync) for d in decisions)))
    return found


@pytest.mark.parametrize(
    ("spec", "exchanges"),
    [
        ("bsp", [True] * 9),
        ("local:1", [True] * 9),
        ("local:4", [False, False, False, True] * 2 + [False]),
        ("post-local:2,at=0.5", [True] * 5 + [False, True, False, True]),
    ],
)
def test_every_rank_follows_the_policy(spec: str, exchanges: list[bool]) -> None:
    policy = parse_policy(spec)
    expected = decided(policy)
    assert [exchange for _, exchange in expected] == exchanges
    for rank in MEMBERS:
        assert followed(rank, policy) == expected


class OnceInTwo(BSP):
    """Extends a policy that is steady, and is not: only every other step is an update, and the last."""

    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        state, decisions = super().decide(state, event)
        if isinstance(event, Report) and event.clock % 2:
            decisions = tuple(decision for decision in decisions if isinstance(decision, Proceed))
        return state, decisions


def test_a_rule_that_extends_a_steady_one_is_followed_step_by_step() -> None:
    assert [exchange for _, exchange in followed(0, OnceInTwo())] == [False, True] * 4 + [True]


def test_every_epoch_starts_a_round_because_the_one_before_has_ended_in_an_average() -> None:
    schedule = LocalSchedule(parse_policy("local:4"), CLUSTER, MEMBERS, 2)
    exchanges = []
    for _ in range(2):
        schedule.start(PLAN)
        while not schedule.done:
            exchanges.append(schedule.advance() is not None)
    assert exchanges == ([False, False, False, True] * 2 + [False]) * 2
