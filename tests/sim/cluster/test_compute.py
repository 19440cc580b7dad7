from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from polyrhythm.errors import ScenarioError, TraceError
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Scenario, Sleep, TimingWorkload, simulate
from polyrhythm.sim.cluster.compute import streams


def draw(config: Compute, means_s: list[float], seed: int = 0, count: int = 4000) -> np.ndarray:
    """Durations, a row a worker."""
    return np.array([list(islice(stream, count)) for stream in streams(config, means_s, seed)])


def test_constant() -> None:
    assert (draw(Compute(), [3.5, 0.03], count=3) == [[3.5] * 3, [0.03] * 3]).all()


@pytest.mark.parametrize("distribution", ["normal", "log-normal"])
def test_mean_and_deviation(distribution: str) -> None:
    durations = draw(Compute(distribution=distribution, deviation=0.2), [0.5], count=40_000)  # type: ignore[arg-type]
    assert durations.mean() == pytest.approx(0.5, rel=0.01)
    assert durations.std() == pytest.approx(0.1, rel=0.03)


def test_normal_is_cut_off() -> None:
    assert draw(Compute(distribution="normal", deviation=2.0), [1.0]).min() == pytest.approx(0.1)


def test_a_stream_depends_on_seed_and_worker_alone() -> None:
    config = Compute(distribution="normal", deviation=0.1)
    both = draw(config, [1.0, 2.0])
    assert (draw(config, [9.0, 2.0])[1] == both[1]).all()
    assert (draw(config, [1.0, 2.0, 3.0])[:2] == both).all()
    first, second = streams(config, [1.0, 2.0], 0)
    interleaved = [(next(second), next(first)) for _ in range(100)]
    assert interleaved == list(zip(both[1, :100], both[0, :100], strict=True))
    assert (draw(config, [1.0, 2.0], seed=1) != both).all()


def test_some_workers_sleep_in_every_step() -> None:
    durations = draw(Compute(sleep=Sleep(probability=0.3, mean_s=4, mean_to_s=18)), [5.0] * 400, count=200)
    slept = durations.mean(axis=1) - 5.0
    sleepers = slept > 1e-9
    assert 0.2 < sleepers.mean() < 0.4
    assert ((durations[sleepers] - 5.0 >= -1e-9).all(), (durations[~sleepers] == 5.0).all()) == (True, True)
    assert (slept[sleepers].min(), slept[sleepers].max()) == (pytest.approx(4, abs=1), pytest.approx(18, abs=1.5))


def test_every_worker_sleeps_in_some_steps() -> None:
    sleep = Sleep(probability=0.3, mean_s=10, deviation=0.1, per="step")
    slept = draw(Compute(sleep=sleep), [5.0] * 5) - 5.0
    assert (slept > 0).mean(axis=1) == pytest.approx([0.3] * 5, abs=0.03)
    assert slept[slept > 0].mean() == pytest.approx(10, rel=0.02)


def test_a_recorded_run_is_replayed(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    workload = TimingWorkload(batch_size=1, samples=40)
    recorded = Scenario(
        devices=[Device(count=4)], compute=Compute(distribution="log-normal", deviation=0.5), workload=workload
    )
    first = simulate(recorded, parse_policy("asp"), seed=3, trace=path)
    replayed = Scenario(
        devices=[Device(count=4)], compute=Compute(distribution="trace", trace=str(path)), workload=workload
    )
    second = simulate(replayed, parse_policy("asp"), seed=99)
    assert (second.duration_s, second.steps_by_worker) == (first.duration_s, first.steps_by_worker)
    assert simulate(replayed, parse_policy("bsp")).steps == 40


def test_measured_times_are_quantiles() -> None:
    durations = draw(Compute(distribution="measured", measured_s=[[3.0, 1.0, 2.0], [5.0]]), [9.0, 9.0], count=20_000)
    assert (durations[0].min(), durations[0].max()) == (pytest.approx(1, abs=0.01), pytest.approx(3, abs=0.01))
    assert np.quantile(durations[0], [0.25, 0.5, 0.75]) == pytest.approx([1.5, 2.0, 2.5], abs=0.03)
    assert (durations[1] == 5.0).all()


def test_measured_times_go_with_their_distribution_and_with_every_worker() -> None:
    for fields in ({"distribution": "measured"}, {"measured_s": [[1.0]]}):
        with pytest.raises(ScenarioError, match=r"compute.measured_s goes with distribution = 'measured'"):
            Compute(**fields)
    with pytest.raises(ScenarioError, match="has 1 lists but the devices are 2 workers"):
        streams(Compute(distribution="measured", measured_s=[[1.0]]), [1.0, 1.0], 0)


def test_a_trace_must_have_steps_of_everyone(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    simulate(Scenario(devices=[Device(count=2)]), parse_policy("bsp"), trace=path)
    scenario = Scenario(devices=[Device(count=3)], compute=Compute(distribution="trace", trace=str(path)))
    with pytest.raises(ScenarioError, match="no usable step of worker 2; this scenario has 3 workers"):
        simulate(scenario, parse_policy("bsp"))
    missing = Scenario(devices=[Device()], compute=Compute(distribution="trace", trace="nowhere.jsonl"))
    with pytest.raises(TraceError, match=r"cannot read trace 'nowhere\.jsonl'"):
        simulate(missing, parse_policy("bsp"))


def test_measured_runs_keep_their_order_and_begin_at_one_place() -> None:
    times = [[float(step) for step in range(1, 41)], [float(step) for step in range(101, 141)]]
    config = Compute(distribution="measured", measured_s=times, consecutive=10)
    first, second = draw(config, [9.0, 9.0], count=1000)
    assert (second - first == 100).all()
    steps = np.diff(first.reshape(-1, 10), axis=1)
    assert set(steps.ravel()) <= {1.0, -39.0}
    assert len(set(first[::10])) > 10
    assert (draw(config, [9.0, 9.0], seed=1, count=1000)[0] != first).any()


def test_runs_are_of_measured_times() -> None:
    with pytest.raises(ScenarioError, match=r"compute.consecutive goes with measured_s"):
        Compute(consecutive=3)
