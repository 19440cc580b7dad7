"""Costs that are read off traces, and the scenario that is made of them."""

from collections.abc import Iterator
from statistics import fmean

import pytest

from polyrhythm.core import Cluster, Decisions, Event, Header, Joined, Left, Proceed, Report, Sync, Trace
from polyrhythm.core.trace import Entry
from polyrhythm.errors import ScenarioError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Scenario, TimingWorkload, load_scenario, scenario_toml, simulate
from polyrhythm.sim.cluster.calibration import Costs, calibrated, full_steps, measure, slowest_s

STEP_S = (1.0, 3.0)
"""What the workers compute."""


COSTS = Costs(
    compute_s=[[0.015, 0.016]] * 4,
    latency_s=0.001,
    service_s=0.0,
    averaging_s=0.001,
    epoch_end_s=0.01,
    message_bytes=19_240.0,
    bandwidths=[float("inf")] * 4,
)


def trace(spec: str, entries: Iterator[tuple[Event, Decisions]]) -> Trace:
    return Trace(Header(spec, Cluster(2)), tuple(Entry(*entry) for entry in entries))


def together(spec: str, wait_s: float, epoch_end_s: float) -> Trace:
    """Two epochs of four common steps; the slower worker waits `wait_s` after each, the other one more than that."""

    def entries() -> Iterator[tuple[Event, Decisions]]:
        now_s, clock = 0.0, 0
        for _ in range(2):
            yield Joined((0, 1), now_s), (Proceed((0, 1)),)
            for _ in range(4):
                now_s, clock = now_s + STEP_S[1] + wait_s, clock + 1
                yield Report(0, clock, now_s, 8, 1.0, wait_s=STEP_S[1] - STEP_S[0] + wait_s), ()
                yield Report(1, clock, now_s, 8, 3.0, wait_s=wait_s), (Sync((0, 1)), Proceed((0, 1)))
            yield Left(0, now_s, clock, "finished"), ()
            yield Left(1, now_s, clock, "finished"), ()
            now_s += epoch_end_s

    return trace(spec, entries())


def apart(message_s: float) -> Trace:
    """Both workers by themselves, each step with so much more for its messages."""

    def entries() -> Iterator[tuple[Event, Decisions]]:
        yield Joined((0, 1), 0.0), (Proceed((0, 1)),)
        steps = [((n + 1) * (step_s + message_s), w, n + 1) for w, step_s in enumerate(STEP_S) for n in range(4)]
        for time_s, worker, clock in sorted(steps):
            yield Report(worker, clock, time_s, 8, STEP_S[worker]), (Sync((worker,)), Proceed((worker,)))

    return trace("asp", entries())


def costs(message_s: float = 0.9, wait_s: float = 0.5) -> Costs:
    traces = {"local:8": together("local:8", 0.0, 0.25), "bsp": together("bsp", wait_s, 0.75), "asp": apart(message_s)}
    return measure(traces, [100.0, 50.0], 10.0, server_busy_s=0.8)


def test_costs_are_what_is_left_of_the_means() -> None:
    found = costs()
    assert [(min(times), max(times)) for times in found.compute_s] == [pytest.approx((t, t)) for t in STEP_S]
    assert found.service_s == pytest.approx(0.1)
    assert found.latency_s == pytest.approx((0.9 - fmean([2 * 10 / 100, 2 * 10 / 50]) - 0.1) / 2)
    assert found.averaging_s == pytest.approx(0.5 - 2 / 2 * 10 / 50)
    assert found.epoch_end_s == pytest.approx(0.5)


def test_what_is_less_than_nothing_is_nothing() -> None:
    found = costs(message_s=0.0, wait_s=0.0)
    assert (found.latency_s, found.averaging_s) == (0.0, 0.0)


def test_bytes_that_took_no_time_were_sent_during_the_backward_pass() -> None:
    found = costs(wait_s=0.05)
    assert found.averaging_s == 0.0
    assert found.hidden_s == pytest.approx(2 / 2 * 10 / 50 - 0.05)
    workload = TimingWorkload(batch_size=1, samples=20)
    made = calibrated(Scenario(devices=[Device(count=2)], workload=workload), found)
    assert simulate(made, parse_policy("bsp")).duration_s == pytest.approx(10 * (STEP_S[1] + 0.05))
    assert simulate(made, parse_policy("local:10")).duration_s == pytest.approx(10 * STEP_S[1] + 0.2)


def test_a_link_that_is_faster_than_stated_is_as_fast_as_measured() -> None:
    found = costs(message_s=0.3)
    assert found.latency_s == pytest.approx(0.0)
    assert found.bandwidths == pytest.approx([2 * 10 / 0.2, 2 * 10 / 0.2])


def test_the_first_step_of_an_epoch_and_parts_of_a_batch_do_not_count() -> None:
    assert [step.worker for step in full_steps(together("bsp", 0.5, 0.0))] == [0, 1] * 6
    short = trace("asp", iter([(Joined((0,), 0.0), (Proceed((0,)),)), (Report(0, 1, 1.0, 8), (Proceed((0,)),))]))
    with pytest.raises(ScenarioError, match="worker 0 has made no whole step under asp"):
        measure(dict.fromkeys(("local:8", "bsp", "asp"), short), [1.0], 1.0, 0.0)


def test_the_slowest_of_all_is_slower_than_the_slowest_mean() -> None:
    assert slowest_s([[1.0], [2.0]]) == 2.0
    assert slowest_s([[1.0, 2.0]] * 2) == pytest.approx(5 / 3, abs=0.02)


def test_the_simulated_means_are_the_measured_ones() -> None:
    found = Costs(
        compute_s=[[1.0], [3.0]],
        latency_s=0.2,
        service_s=0.1,
        averaging_s=0.5,
        epoch_end_s=0.25,
        message_bytes=0.0,
        bandwidths=[1e9, 1e9],
    )
    workload = TimingWorkload(batch_size=1, samples=16, dataset_samples=8)
    made = calibrated(Scenario(devices=[Device(count=2)], workload=workload), found)
    assert simulate(made, parse_policy("bsp")).duration_s == pytest.approx(2 * 4 * 3.5 + 0.25)
    asp = simulate(made, parse_policy("asp"))
    assert asp.steps_by_worker == {0: 10, 1: 6}
    assert asp.duration_s == pytest.approx(2 * 3 * (3.0 + 2 * 0.2 + 0.1) + 0.25)


def test_a_calibrated_scenario_is_a_file(tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("made") / "mine.toml"
    made = calibrated(load_scenario("local-straggler"), COSTS)
    path.write_text(scenario_toml(made), encoding="utf-8")
    assert load_scenario(str(path)) == made
