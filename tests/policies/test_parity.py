"""Parity laws at the level of decisions and schedules, on random clusters."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import Decisions, Entry, Left, Policy, Proceed, Report, Sync, Wake
from polyrhythm.policies import BUILT_IN, parse_policy
from polyrhythm.testing import ClusterScript, ScriptPlayer, scripts

quiet = settings(max_examples=40, deadline=None, derandomize=True, database=None)

ONE_OF_EACH = [
    "bsp",
    "balanced",
    "auto",
    "asp",
    "ssp:3",
    "dssp:1,4",
    "k-sync:3",
    "k-batch-sync:3",
    "k-async:3",
    "k-batch-async:3",
    "backup:2",
    "ringmaster:2",
    "local:3",
    "post-local:3,0.4",
    "k-group:3",
    "kbandit",
    "rlp",
    "switch:bsp@0.4,asp",
    "tuned:(bsp)",
    "greedy:(switch:bsp@0.4,asp)",
    "elastic:(switch:bsp@0.4,asp)",
    "selsync:0.3",
    "esync",
    "fedavg:0.5,0.3",
    "diloco:4",
]


def decided(policy: Policy[Any], script: ClusterScript) -> list[Entry]:
    return ScriptPlayer(policy, script).play().entries


def schedule(policy: Policy[Any], script: ClusterScript) -> list[tuple[str, int, int, float]]:
    """Who completed which step, or left, and when."""
    events = [event for event, _ in decided(policy, script) if isinstance(event, Report | Left)]
    return [(type(event).__name__, event.worker, event.clock, event.time_s) for event in events]


def while_running(script: ClusterScript) -> ClusterScript:
    """The same faults, but nobody leaves while it waits: what is lost with its gradient depends on the policy."""
    return replace(script, faults=tuple(replace(fault, at=0.5) for fault in script.faults))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ssp:inf", "asp"),
        ("k-async:1", "asp"),
        ("ringmaster:1000000", "asp"),
        ("ringmaster:1000000,stop=true", "asp"),
        ("k-batch-async:1", "asp"),
        ("k-group:1", "asp"),
        ("k-sync:99", "bsp"),
        ("k-async:99", "bsp"),
        ("backup:0", "bsp"),
        ("post-local:h=3,at=1", "bsp"),
        ("post-local:h=3,at=0", "local:3"),
        ("switch:bsp@1,asp", "bsp"),
        ("greedy:(switch:bsp@0.4,asp),window=999", "switch:bsp@0.4,asp"),
        ("elastic:(switch:bsp@0.4,asp),window=999", "switch:bsp@0.4,asp"),
        ("switch:bsp@0,asp", "asp"),
        ("switch:(ssp:1)@0,(local:2)@1,asp", "local:2"),
        ("k-batch-sync:1", "k-sync:1"),
        ("backup:99", "k-sync:1"),
        ("fedavg:c=1,e=1e-9", "local:1"),
        ("diloco:h=3,fragments=1,overlap=0", "diloco:3"),
    ],
)
@quiet
@given(script=scripts())
def test_same_decisions(one: str, other: str, script: ClusterScript) -> None:
    assert decided(parse_policy(one), script) == decided(parse_policy(other), script)


@quiet
@given(script=scripts(), s=st.integers(0, 3))
def test_dssp_without_a_range_is_ssp(script: ClusterScript, s: int) -> None:
    assert decided(parse_policy(f"dssp:{s},{s}"), script) == decided(parse_policy(f"ssp:{s}"), script)


@pytest.mark.parametrize("one", ["ssp:0", "local:1", "k-group:99", "selsync:0", "diloco:1"])
@quiet
@given(script=scripts().map(while_running))
def test_same_schedule_as_bsp(one: str, script: ClusterScript) -> None:
    assert schedule(parse_policy(one), script) == schedule(parse_policy("bsp"), script)


@quiet
@given(script=scripts())
def test_selsync_with_a_threshold_that_always_fires_is_local_sgd_of_one_step(script: ClusterScript) -> None:
    def decisions(spec: str) -> list[Decisions]:
        return [entry.decisions for entry in decided(parse_policy(spec), script)]

    assert decisions("selsync:0") == decisions("local:1")


@quiet
@given(script=scripts())
def test_selsync_without_a_threshold_that_fires_never_communicates(script: ClusterScript) -> None:
    entries = decided(parse_policy("selsync:inf"), script)
    assert not [decision for _, decisions in entries for decision in decisions if isinstance(decision, Sync)]


@quiet
@given(script=scripts(), h=st.integers(1, 5))
def test_diloco_has_the_rounds_of_local_sgd(script: ClusterScript, h: int) -> None:
    assert schedule(parse_policy(f"diloco:{h}"), script) == schedule(parse_policy(f"local:{h}"), script)


@quiet
@given(script=scripts(most_faults=0, most_arrivals=0), duration_s=st.sampled_from([0.5, 1.0, 3.0]))
def test_balanced_on_equal_workers_is_bsp(script: ClusterScript, duration_s: float) -> None:
    """Of whole mini-batches: the steps of a script take as long as it says, whatever their size."""
    whole = script.total_samples - script.total_samples % script.batch_size
    samples = max(whole, script.batch_size)
    equal = replace(script, durations=((duration_s,),), total_samples=samples, dataset_samples=samples)
    assert decided(parse_policy("balanced"), equal) == decided(parse_policy("bsp"), equal)


@pytest.mark.parametrize("spec", ["esync", "esync:blocking=false", "esync:epsilon=0"])
@quiet
@given(script=scripts(most_faults=0, most_arrivals=0), duration_s=st.sampled_from([0.5, 1.0, 3.0]))
def test_esync_on_equal_workers_is_local_sgd_of_one_step(spec: str, script: ClusterScript, duration_s: float) -> None:
    whole = script.total_samples - script.total_samples % (script.workers * script.batch_size)
    equal = replace(script, durations=((duration_s,),), total_samples=max(whole, script.workers * script.batch_size))
    equal = replace(equal, dataset_samples=equal.total_samples, alarm_delay_s=0.0, latency_s=0.0)

    def rounds(policy: str) -> list[tuple[int, ...]]:
        entries = decided(parse_policy(policy), equal)
        return [decision.workers for _, decisions in entries for decision in decisions if isinstance(decision, Sync)]

    if "blocking" in spec:  # at the end of the job nothing is left for who asks first, and it goes
        assert rounds(spec)[:-2] == rounds("local:1")[: max(0, len(rounds(spec)) - 2)]
    else:
        assert rounds(spec) == rounds("local:1")


@pytest.mark.parametrize("spec", ONE_OF_EACH)
@quiet
@given(script=scripts(workers=st.just(1), most_faults=0, most_arrivals=0))
def test_one_worker_is_plain_training(spec: str, script: ClusterScript) -> None:
    """Step after step without a wait; a gradient is applied before the next step, and nothing is stale or dropped."""
    stage = ScriptPlayer(parse_policy(spec), script).play()
    now_s = 0.0
    for event, decisions in stage.entries[1:-1]:
        assert isinstance(event, Report)
        now_s += event.step_s
        assert (event.time_s, event.staleness) == (now_s, 0)
        go_on = decisions[-1]
        assert isinstance(go_on, Proceed)
        assert go_on.workers == (0,)
        assert all(isinstance(d, Sync | Wake) for d in decisions[:-1])
        assert decisions[:-1] or go_on.exchange == "replicas"
    assert not stage.ledger.dropped


def test_every_policy_is_there() -> None:
    assert {parse_policy(spec).name for spec in ONE_OF_EACH} == set(BUILT_IN)
