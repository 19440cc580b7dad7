import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import Alarm, Cancel, Event, Joined, Left, Policy, Proceed, Report, Sync, Trace, Wake
from polyrhythm.core.types import Settings
from polyrhythm.errors import PolicyError, ScenarioError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import (
    Compute,
    Device,
    Faults,
    Join,
    Leave,
    Limits,
    Network,
    Scenario,
    Straggler,
    TimingWorkload,
    simulate,
)
from polyrhythm.sim.cluster.links import ring_s
from tests.sim.clusters import SPECS, Books, Recorder, Scripted, cluster, clusters, engine_of

GBPS = 8e-9
"""One byte a second."""


def events(scenario: Scenario, policy: str | Policy[Any]) -> list[Event]:
    """What a policy is told."""
    log: list[Any] = []
    simulate(scenario, Recorder(parse_policy(policy) if isinstance(policy, str) else policy, log))
    return [event for event, _ in log]


def reports(scenario: Scenario, policy: str | Policy[Any]) -> list[Report]:
    """The reports among them."""
    return [event for event in events(scenario, policy) if isinstance(event, Report)]


def arrivals(scenario: Scenario, policy: str | Policy[Any]) -> list[tuple[int, float]]:
    """Who reports when."""
    return [(report.worker, report.time_s) for report in reports(scenario, policy)]


# Laws.


@settings(max_examples=25, deadline=None, derandomize=True)
@given(scenario=clusters(), seed=st.integers(0, 3))
@pytest.mark.parametrize("spec", SPECS)
def test_laws(spec: str, scenario: Scenario, seed: int) -> None:
    books, log = Books(), []  # type: ignore[var-annotated]
    engine = engine_of(scenario, Recorder(parse_policy(spec), log), books, seed)
    engine.run()
    ledger, meter, total = engine.ledger, engine.meter, scenario.workload.samples

    assert ledger.computed == ledger.applied + sum(ledger.dropped.values())
    samples = books.samples()
    assert len(samples) == len(set(samples)) == meter.samples
    if scenario.limits.time_s == math.inf:
        assert samples == [divmod(sample, min(10, total)) for sample in range(total)]

    times = [event.time_s for event, _ in log]
    assert all(earlier <= later for earlier, later in pairwise(times))
    assert times[-1] <= engine.calendar.now_s <= scenario.limits.time_s
    assert isinstance(log[0][0], Joined)
    assert not books.running
    assert not books.pending


@settings(max_examples=15, deadline=None, derandomize=True)
@given(scenario=clusters(), seed=st.integers(0, 3))
@pytest.mark.parametrize("spec", SPECS)
def test_time_is_compute_transfer_and_idle(spec: str, scenario: Scenario, seed: int) -> None:
    result = simulate(scenario, parse_policy(spec), seed=seed)
    fractions = (result.compute_fraction, result.transfer_fraction, result.idle_fraction)
    assert all(-1e-9 <= fraction <= 1 + 1e-9 for fraction in fractions)
    if result.duration_s:
        assert sum(fractions) == pytest.approx(1)


# Time of a step.


def test_bsp_round_is_the_slowest_step() -> None:
    scenario = cluster(1.0, 2.5, 2.0, samples=12)
    result = simulate(scenario, parse_policy("bsp"))
    assert result.duration_s == 4 * 2.5
    assert result.idle_fraction == pytest.approx(1 - (1 + 2.5 + 2) / (3 * 2.5))
    assert result.idle_fraction_by_worker == pytest.approx({0: 0.6, 1: 0.0, 2: 0.2})
    assert result.staleness_counts == {0: 12}


@settings(max_examples=30, deadline=None, derandomize=True)
@given(seed=st.integers(0, 99))
def test_bsp_round_is_the_slowest_step_with_jitter(seed: int) -> None:
    scenario = cluster(1.0, 1.2, 1.1, samples=30, compute=Compute(distribution="normal", deviation=0.2))
    steps = engine_of(scenario, parse_policy("bsp"), seed=seed).job.durations
    rounds = [max(next(worker) for worker in steps) for _ in range(10)]
    assert simulate(scenario, parse_policy("bsp"), seed=seed).duration_s == pytest.approx(sum(rounds))


def test_a_server_sees_to_one_push_after_the_other() -> None:
    scenario = cluster(1.0, 1.0, 1.0, samples=3, network=Network(service_s=0.5))
    assert arrivals(scenario, "asp") == [(0, 1.5), (1, 2.0), (2, 2.5)]


def test_a_ring_takes_its_time_beside_its_bytes() -> None:
    scenario = cluster(1.0, 2.0, samples=4, network=Network(averaging="ring", averaging_s=0.25))
    assert simulate(scenario, parse_policy("bsp")).duration_s == 2 * (2.0 + 0.25)


def test_asp_does_not_wait() -> None:
    result = simulate(cluster(1.0, 2.0, samples=9), parse_policy("asp"))
    assert (result.steps_by_worker, result.duration_s) == ({0: 6, 1: 3}, 6.0)
    assert result.idle_fraction == 0


def test_staleness_counts_updates_between_read_and_arrival() -> None:
    told = reports(cluster(1.0, 2.5, samples=8), "asp")
    assert [(r.worker, r.staleness) for r in told[:5]] == [(0, 0), (0, 0), (1, 2), (0, 1), (0, 0)]


def test_a_step_pulls_computes_and_pushes() -> None:
    network = Network(message_bytes=4, latency_s=0.5)
    devices = [Device(compute_s=2.0, bandwidth_gbps=8 * GBPS)]
    scenario = Scenario(devices=devices, workload=TimingWorkload(batch_size=1, samples=2), network=network)
    first, second = reports(scenario, "asp")
    assert (first.time_s, first.step_s, first.transfer_s) == (4.0, 2.0, 2.0)
    assert (second.time_s, second.clock) == (8.0, 2)


def test_messages_share_the_server() -> None:
    scenario = cluster(1.0, 1.0, samples=4, network=Network(message_bytes=6, server_gbps=3 * GBPS))
    result = simulate(scenario, parse_policy("bsp"))
    assert result.duration_s == 2 * (4 + 1 + 4)
    assert (result.bytes_pushed, result.bytes_pulled, result.bytes_total) == (24, 24, 48)
    assert result.transfer_fraction == pytest.approx(8 / 9)
    sharded = simulate(
        cluster(1.0, 1.0, samples=4, network=Network(message_bytes=6, server_gbps=3 * GBPS, shards=4)),
        parse_policy("bsp"),
    )
    assert sharded.duration_s == 2 * (1 + 1 + 1)


def test_full_duplex_lets_a_pull_pass_a_push() -> None:
    def duration_s(duplex: Any) -> float:
        network = Network(message_bytes=6, server_gbps=6 * GBPS, duplex=duplex)
        return simulate(cluster(0.5, 2.0, samples=20, network=network), parse_policy("asp")).duration_s

    assert duration_s("full") < duration_s("half")


def test_thin_links_transfer_26_s_a_round() -> None:
    network = Network(message_bytes=507e6, server_gbps=5)
    result = simulate(cluster(*[0.04] * 16, samples=32, network=network), parse_policy("bsp"))
    assert result.duration_s / 2 == pytest.approx(0.04 + 2 * 16 * 507e6 * 8 / 5e9)


def test_a_ring_replaces_pull_and_push() -> None:
    network = Network(message_bytes=12, averaging="ring", latency_s=0.5)
    devices = [Device(compute_s=s, bandwidth_gbps=g * GBPS) for s, g in ((1.0, 9), (2.0, 4), (2.0, 3))]
    scenario = Scenario(devices=devices, network=network, workload=TimingWorkload(batch_size=1, samples=9))
    ring = ring_s(3, 12, 3, 0.5)
    result = simulate(scenario, parse_policy("bsp"))
    assert result.duration_s == pytest.approx(3 * 2.0 + 3 * ring)
    assert result.bytes_total == 3 * 2 * 2 * 12
    told = reports(scenario, "bsp")
    assert [r.transfer_s for r in told[:3]] == [0, 0, 0]
    assert [r.transfer_s for r in told[3:6]] == pytest.approx([ring] * 3)
    asynchronous = simulate(scenario, parse_policy("asp"))
    assert asynchronous.bytes_pushed == asynchronous.bytes_pulled == 9 * 12


def test_replicas_are_averaged_through_the_server() -> None:
    network = Network(message_bytes=6, server_gbps=6 * GBPS)
    scenario = cluster(1.0, 2.0, samples=8, network=network)
    result = simulate(scenario, parse_policy("local:2"))
    assert result.duration_s == 2 * (2 * 2.0 + 2 + 2)
    assert (result.updates, result.bytes_pushed, result.bytes_pulled) == (2, 24, 24)
    assert result.staleness_mean is None


def test_what_steps_on_replicas_pay_for_their_reports() -> None:
    """Nothing where clocks decide, a message where everyone hears everyone, a message and its answer at an arbiter."""
    network = Network(latency_s=0.25)
    scheduled = simulate(cluster(1.0, samples=4, network=network), parse_policy("local:9"))
    assert (scheduled.duration_s, scheduled.transfer_fraction) == (4.0, 0.0)
    script = [(Proceed((0,), "replicas"),)] * 5
    coordinated = simulate(cluster(1.0, samples=4, network=network), Scripted(script))
    assert (coordinated.duration_s, coordinated.transfer_fraction) == (6.0, 1 / 3)
    replicated = simulate(cluster(1.0, samples=4, network=network), parse_policy("selsync:lssr=0.9,delta=2"))
    assert (replicated.duration_s, replicated.transfer_fraction) == (5.0, 0.2)


def test_partial_mini_batches_take_less_time() -> None:
    assert arrivals(cluster(3.0, samples=4, batch_size=3), "asp") == [(0, 3.0), (0, 4.0)]


def test_a_policy_sets_the_batch_size() -> None:
    script = [(Proceed((0,), settings=Settings(batch_size=6)),)]
    assert [(r.samples, r.step_s) for r in reports(cluster(3.0, samples=9, batch_size=3), Scripted(script))] == [
        (6, 6.0),
        (3, 3.0),
    ]


# Faults.


def test_a_straggler_by_time() -> None:
    slow = Straggler(workers=[0], start_s=2, duration_s=3, slowdown=2, extra_compute_s=0.5)
    scenario = cluster(1.0, samples=6, faults=Faults(stragglers=[slow]))
    assert [r.time_s for r in reports(scenario, "asp")] == [1.0, 2.0, 4.5, 7.0, 8.0, 9.0]


def test_a_straggler_by_step() -> None:
    slow = Straggler(workers=[1], start_step=1, steps=2, slowdown=4)
    scenario = cluster(1.0, 1.0, samples=8, faults=Faults(stragglers=[slow]))
    assert [r.step_s for r in reports(scenario, "bsp") if r.worker == 1] == [1.0, 4.0, 4.0, 1.0]


def test_a_straggler_far_away() -> None:
    slow = Straggler(workers=[0], start_s=0, extra_latency_s=0.25)
    scenario = cluster(1.0, samples=2, faults=Faults(stragglers=[slow]))
    assert [r.time_s for r in reports(scenario, "asp")] == [1.5, 3.0]


def test_a_death_drops_the_step_and_hands_out_its_samples_again() -> None:
    scenario = cluster(1.0, 1.5, samples=6, faults=Faults(leaves=[Leave(worker=1, time_s=2.0, reason="hung")]))
    result = simulate(scenario, parse_policy("asp"))
    assert result.steps_by_worker == {0: 5, 1: 1}
    assert result.dropped_by_reason == {"left": 1}
    assert (result.gradients_computed, result.gradients_applied, result.samples) == (7, 6, 6)
    assert Left(1, 2.0, 1, "hung") in events(scenario, "asp")


def test_a_death_at_a_step() -> None:
    scenario = cluster(1.0, 1.0, samples=8, faults=Faults(leaves=[Leave(worker=1, step=2)]))
    assert Left(1, 2.0, 2, "died") in events(scenario, "bsp")
    assert simulate(scenario, parse_policy("bsp")).steps_by_worker == {0: 6, 1: 2}


def test_a_worker_comes_back_and_another_comes_late() -> None:
    faults = Faults(leaves=[Leave(worker=0, time_s=1.5, back_after_s=2)], joins=[Join(worker=2, time_s=2.25)])
    told = events(cluster(1.0, 1.0, 1.0, samples=20, faults=faults), "asp")
    assert [event for event in told if isinstance(event, Joined)] == [
        Joined((0, 1), 0.0, 0),
        Joined((2,), 2.25, 2),
        Joined((0,), 3.5, 3),
    ]


def test_the_finished_come_back_when_the_last_one_dies() -> None:
    scenario = cluster(1.0, 9.0, samples=4, faults=Faults(leaves=[Leave(worker=1, time_s=5.0)]))
    result = simulate(scenario, parse_policy("asp"))
    assert (result.samples, result.steps_by_worker, result.duration_s) == (4, {0: 4, 1: 0}, 6.0)


def test_nobody_is_left() -> None:
    scenario = cluster(1.0, samples=4, faults=Faults(leaves=[Leave(worker=0, time_s=1.5)]))
    with pytest.raises(ScenarioError, match="all workers have left and 3 samples are not processed"):
        simulate(scenario, parse_policy("asp"))


def test_a_death_in_the_middle_of_an_average() -> None:
    network = Network(message_bytes=6, server_gbps=6 * GBPS)
    for time_s in (2.5, 4.5, 5.5):
        faults = Faults(leaves=[Leave(worker=1, time_s=time_s)])
        scenario = cluster(1.0, 1.0, 1.0, samples=30, network=network, faults=faults)
        assert simulate(scenario, parse_policy("local:2")).samples == 30


# Decisions.


def test_cancelled_work_is_dropped_and_its_samples_handed_out_again() -> None:
    result = simulate(cluster(1.0, 1.0, 5.0, samples=6), parse_policy("k-sync:2"))
    assert (result.samples, result.dropped_by_reason, result.staleness_counts) == (6, {"cancelled": 2}, {0: 6})
    assert result.duration_s == 3.0
    assert result.compute_fraction == 1.0


def test_a_cancelled_step_may_be_computed_to_its_end_as_real_workers_do() -> None:
    script = [(Proceed((0, 1)),), (Sync((0,)), Cancel((1,)), Proceed((0, 1)))]
    stopping, finishing = (
        cluster(1.0, 5.0, samples=20, compute=Compute(cancelled=cancelled)) for cancelled in ("stops", "finishes")
    )
    assert next(time_s for worker, time_s in arrivals(stopping, Scripted(script)) if worker) == 6.0
    assert next(time_s for worker, time_s in arrivals(finishing, Scripted(script)) if worker) == 10.0


def test_who_is_cancelled_again_before_its_step_is_over_begins_at_its_end() -> None:
    again = (Sync((0,)), Cancel((1,)), Proceed((0, 1)))
    scenario = cluster(1.0, 5.0, samples=20, compute=Compute(cancelled="finishes"))
    assert next(
        time_s for worker, time_s in arrivals(scenario, Scripted([(Proceed((0, 1)),), *[again] * 3])) if worker
    ) == pytest.approx(10.0)


def test_a_cancelled_push_frees_the_link() -> None:
    network = Network(message_bytes=10, server_gbps=10 * GBPS)
    script = [(Proceed((0, 1, 2)),), (Cancel((2,)), Sync((0,))), (Sync((1,)), Proceed((0, 1, 2)))]
    # Everyone has pulled at 3 s; at 6 s workers 1 and 2 have half of their pushes to go.
    assert arrivals(cluster(1.0, 1.5, 1.5, samples=10, network=network), Scripted(script))[:2] == [(0, 6.0), (1, 6.5)]


def test_a_finished_worker_applies_what_it_has_pending() -> None:
    script = [(Proceed((0,)),), (Proceed((0,)),), (Proceed((0,)),)]
    result = simulate(cluster(1.0, samples=2), Scripted(script))
    assert (result.updates, result.gradients_applied, result.gradients_dropped) == (1, 2, 0)


def test_a_finished_worker_may_be_cancelled_and_sent_for_returned_samples() -> None:
    script = [(Proceed((0, 1)),), (Proceed((0,)), Cancel((0, 1)), Proceed((0,)), Proceed((1,)))]
    result = simulate(cluster(1.0, 5.0, samples=2), Scripted(script))
    assert (result.samples, result.steps_by_worker) == (2, {0: 2, 1: 1})
    assert result.dropped_by_reason == {"cancelled": 2}


def test_alarms() -> None:
    script = [(Proceed((0,)), Wake(0.5), Wake(0.0))]
    told = events(cluster(1.0, samples=1), Scripted(script))
    assert [event for event in told if isinstance(event, Alarm)] == [Alarm(0.0), Alarm(0.5)]


def test_a_policy_that_only_wakes_itself_is_stopped() -> None:
    class Restless(Scripted):
        def decide(self, state: int, event: Event) -> tuple[int, tuple[Wake, ...]]:
            return state, (Wake(event.time_s + 1.0),)

    with pytest.raises(PolicyError, match="has woken itself 100,000 times since the last report"):
        simulate(cluster(1.0), Restless([]))


def test_a_release_during_an_average_starts_after_it() -> None:
    script = [
        (Proceed((0,), "replicas"),),
        (Sync((0,), "parameters"), Proceed((0,), "replicas")),
        (Sync((0,), "parameters"), Proceed((0,), "replicas")),
    ]
    network = Network(message_bytes=1, server_gbps=GBPS)
    assert arrivals(cluster(1.0, samples=2, network=network), Scripted(script)) == [(0, 1.0), (0, 4.0)]
    assert simulate(cluster(1.0, samples=2, network=network), Scripted(script)).duration_s == 6.0


def test_a_second_average_takes_the_place_of_the_first() -> None:
    both = (Sync((0,), "parameters"), Sync((0,), "parameters"), Proceed((0,), "replicas"))
    script = [(Proceed((0,), "replicas"),), both, both]
    network = Network(message_bytes=1, server_gbps=GBPS)
    assert arrivals(cluster(1.0, samples=2, network=network), Scripted(script)) == [(0, 1.0), (0, 4.0)]


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ([()], "is deadlocked at 0 s: workers 0, 1 wait, none runs, and 4 samples are left"),
        ([(Proceed((0,)),), (Sync((0,)),)], "deadlocked at 1 s: workers 0, 1 wait, none runs, and 3 samples"),
        ([(Proceed((7,)),)], "Proceed names worker 7, which is not live"),
        ([(Proceed((0, 0)),)], "Proceed names worker 0, which is still running"),
        ([(Sync((0,)),)], "Sync names worker 0, which has no gradient pending"),
        ([("go",)], "returned 'go', which is not a decision"),
        ([5], "returned 5, which is not a tuple of decisions"),
    ],
)
def test_policies_that_break_the_contract(script: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match=message):
        simulate(cluster(1.0, 1.0, samples=4), Scripted(script), trace=tmp_path / "trace.jsonl")
    Trace.load(tmp_path / "trace.jsonl")


def test_a_policy_that_raises_is_named() -> None:
    class Broken(Scripted):
        name = "broken"

        def decide(self, state: int, event: Event) -> Any:
            raise KeyError("oops")

    with pytest.raises(PolicyError, match=r"policy broken.* raised KeyError\('oops'\) at Joined"):
        simulate(cluster(1.0), Broken([]))


# The end.


def test_the_time_limit() -> None:
    result = simulate(cluster(1.0, 4.0, samples=90, limits=Limits(time_s=6.0)), parse_policy("asp"))
    assert (result.duration_s, result.steps_by_worker) == (6.0, {0: 6, 1: 1})
    assert result.dropped_by_reason == {"unfinished": 2}
    assert result.compute_fraction == 1.0


def test_the_sample_limit() -> None:
    assert simulate(cluster(1.0, samples=90, limits=Limits(samples=7)), parse_policy("asp")).samples == 7
