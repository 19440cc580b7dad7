"""Auto in the simulator: what it makes of clusters that other policies are good or bad at."""

from pathlib import Path

import pytest

from polyrhythm.core import Joined, Report, Trace, replay
from polyrhythm.errors import SpecError
from polyrhythm.policies import parse_policy
from polyrhythm.policies.auto.arms import Informed, ShareLimits
from polyrhythm.policies.auto.evidence import JobTimes
from polyrhythm.policies.auto.mind import EQUAL_AGAIN
from polyrhythm.sim import Compute, Device, Faults, Network, Scenario, Straggler, TimingWorkload, simulate

ONE_SLOW = [Device(count=3, compute_s=1.0), Device(compute_s=3.9)]
RING = Network(averaging="ring", averaging_s=0.1)


def scenario(devices: list[Device], rounds: int = 120, **more: object) -> Scenario:
    workers = sum(device.count for device in devices)
    workload = TimingWorkload(batch_size=64, samples=rounds * 64 * workers)
    return Scenario(devices=devices, workload=workload, **more)  # type: ignore[arg-type]


def seconds(what: Scenario, policy: str) -> float:
    return simulate(what, policy).duration_s


@pytest.mark.parametrize("network", [Network(), RING])
def test_a_slow_worker_gets_less_and_the_log_says_why(tmp_path: Path, network: Network) -> None:
    what = scenario(ONE_SLOW, network=network)
    result = simulate(what, "auto", trace=tmp_path / "trace")
    assert result.duration_s < 1.05 * seconds(what, "balanced")
    assert result.switches == 0  # balanced BSP is in force from the start, with equal shares
    ((_, remark),) = Trace.load(tmp_path / "trace").remarks
    assert remark.startswith("balanced: rank 3 is 3.9x slower; ")
    assert "x the throughput, shares " in remark


def test_it_runs_again_from_its_trace_and_its_remarks_survive(tmp_path: Path) -> None:
    simulate(scenario(ONE_SLOW), "auto", trace=tmp_path / "trace")
    trace = Trace.load(tmp_path / "trace")
    assert len(list(replay(parse_policy(trace.header.policy), trace))) == len(trace.entries)
    trace.save(tmp_path / "again")
    assert Trace.load(tmp_path / "again") == trace


@pytest.mark.parametrize("network", [Network(), RING])
def test_among_equal_workers_it_is_bsp(network: Network) -> None:
    what = scenario([Device(count=4)], network=network, compute=Compute(distribution="normal", deviation=0.1))
    assert seconds(what, "auto") == seconds(what, "bsp")
    assert simulate(what, "auto").switches == 0


def test_a_straggler_that_comes_later_is_found() -> None:
    faults = Faults(stragglers=[Straggler(workers=[1], start_step=60, slowdown=4.0)])
    what = scenario([Device(count=4)], rounds=160, faults=faults)
    assert seconds(what, "auto") < 0.5 * seconds(what, "bsp")


DIFFERENT = [Device(compute_s=step_s) for step_s in (1.3, 2.6, 1.6, 1.4, 2.2, 1.7, 2.7, 2.5)]


def test_workers_that_are_late_in_turn_are_not_dealt_by_their_last_steps() -> None:
    turns = [Straggler(workers=[turn % 8], start_step=turn * 4, steps=4, slowdown=4.0) for turn in range(20)]
    compute = Compute(distribution="normal", deviation=0.1)
    what = scenario(DIFFERENT, rounds=40, compute=compute, faults=Faults(stragglers=turns))
    assert seconds(what, "auto") <= 1.02 * seconds(what, "bsp")


def test_a_change_of_shares_takes_no_time_of_its_own() -> None:
    free, costly = scenario(ONE_SLOW), scenario(ONE_SLOW, switch_cost_s=2.0)
    assert seconds(costly, "auto") == seconds(free, "auto")


def test_shares_that_are_equal_again_are_told_of(tmp_path: Path) -> None:
    faults = Faults(stragglers=[Straggler(workers=[1], start_step=20, steps=40, slowdown=4.0)])
    simulate(scenario([Device(count=4)], faults=faults), "auto", trace=tmp_path / "trace")
    said = [remark for _, remark in Trace.load(tmp_path / "trace").remarks]
    assert [remark.split(";")[0] for remark in said] == ["balanced: rank 1 is 4.0x slower", EQUAL_AGAIN]


def test_steps_that_are_late_by_chance_are_dropped_only_if_that_is_allowed() -> None:
    compute = Compute(distribution="log-normal", deviation=0.8)
    what = scenario([Device(count=8)], rounds=300, compute=compute)
    assert simulate(what, "auto").gradients_dropped == 0
    dropping = simulate(what, "auto:drop=true")
    assert dropping.gradients_dropped > 0
    assert dropping.duration_s < 0.95 * seconds(what, "bsp")


def test_where_a_change_is_costly_it_pays_for_itself_or_is_not_made() -> None:
    for cost_s in (0.0, 2.0):
        what = scenario([Device(count=3, compute_s=1.0), Device(compute_s=1.3)], switch_cost_s=cost_s)
        assert seconds(what, "auto") <= 1.02 * seconds(what, "bsp")


def test_of_who_has_made_no_step_nothing_is_known() -> None:
    """As of a newcomer, beside others whose shares have paid."""
    known = JobTimes(8)
    for worker in (0, 1):
        for clock in range(1, 7):
            known = known.after(Report(worker, clock, 1.0 * clock, samples=8, step_s=1.0 + 2 * worker), alone=False)
    known = known.after(Joined((2,), time_s=9.0), alone=False)
    assert Informed.by(known, ShareLimits(risk=0.02, pays=True)).known == "1~0.071/3~0.071/-"


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ("auto:everything", "allow must be one of .* but got 'everything'"),
        ("auto:risk=1", "risk must be a share from 0 to below 1 but got 1"),
        ("auto:most=0", "most must be a whole number"),
        ("auto:drop=maybe", "drop must be true or false"),
    ],
)
def test_wrong_parameters_are_one_line(spec: str, reason: str) -> None:
    with pytest.raises(SpecError, match=reason):
        parse_policy(spec)


@pytest.mark.parametrize("spec", ["auto", "auto:drop=True", "auto:risk=0.1,drop=True,most=64"])
def test_specs_are_read_as_they_are_written(spec: str) -> None:
    assert parse_policy(spec).spec == spec
    assert parse_policy(parse_policy(spec).spec) == parse_policy(spec)
