"""Greedy: when the last policy takes over, and that BSP gets its share."""

from dataclasses import replace

import pytest

from polyrhythm.core import Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer

SCRIPT = ClusterScript(
    workers=4,
    durations=((1.0,), (1.0,), (1.0,), (*[1.0] * 6, *[3.0] * 6, *[1.0] * 90)),
    total_samples=200,
    dataset_samples=200,
)


def test_the_last_rule_is_in_force_while_somebody_straggles() -> None:
    stage = ScriptPlayer(parse_policy("greedy:(switch:bsp@0.5,asp),window=2"), SCRIPT)
    policies, state = [], stage.policy.init(stage.cluster)
    stage.play()
    for event, _ in stage.entries:
        state, _ = stage.policy.decide(state, event)
        policies.append(stage.policy.in_force(state).spec)
    changes = [policy for k, policy in enumerate(policies) if k == 0 or policy != policies[k - 1]]
    assert changes == ["bsp", "asp", "bsp", "asp"]


def test_bsp_gets_its_share_all_the_same() -> None:
    stage = ScriptPlayer(parse_policy("greedy:(switch:bsp@0.5,asp),window=2"), SCRIPT).play()
    taken = [d.workers for _, decisions in stage.entries for d in decisions if isinstance(d, Sync)]
    assert sum(len(workers) for workers in taken if len(workers) == 4) in range(96, 108)


def test_steps_in_flight_are_dropped_at_each_change_if_the_sequence_says_so() -> None:
    durations = ((1.0,), (1.3,), (1.7,), SCRIPT.durations[3])
    stages = [
        ScriptPlayer(parse_policy(f"greedy:(switch:asp@0.5,bsp{late}),window=2"), replace(SCRIPT, durations=durations))
        for late in ("", ",late=drop")
    ]
    finished, dropped = (stage.play().ledger.dropped["cancelled"] for stage in stages)
    assert finished == 0
    assert dropped >= 3, "at a change from ASP three others run"


def test_a_policy_whose_workers_do_not_wait_is_refused() -> None:
    with pytest.raises(SpecError, match="greedy needs workers that wait for an answer to their reports"):
        parse_policy("greedy:(esync:blocking=false)")


def test_without_a_sequence_the_policy_runs_as_it_is() -> None:
    one, other = (
        ScriptPlayer(parse_policy("greedy:(ssp:2),window=1"), SCRIPT).play(),
        ScriptPlayer(parse_policy("ssp:2"), SCRIPT).play(),
    )
    assert one.entries == other.entries
