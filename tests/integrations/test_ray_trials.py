"""Sweeps on a Ray cluster of two nodes on this host: the results of this host alone, also when a worker is killed."""

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import pytest
import ray
from ray.cluster_utils import Cluster

from polyrhythm.rl.instances import FAMILIES, draw
from polyrhythm.rl.rollout import Rollout, play_all
from polyrhythm.search.plan import Knob, SearchTrial
from polyrhythm.search.ray_tasks import trials_on_ray
from polyrhythm.search.runners import SerialRunner, on_ray
from polyrhythm.search.simulated import SimulatedTrials
from polyrhythm.sim import Device, Scenario, sweep
from polyrhythm.telemetry.result import RunResult
from polyrhythm.training.config import TrainingConfig

SCENARIO = Scenario(
    devices=[Device(count=3, compute_s=0.1)], training=TrainingConfig(task="digits", epochs=1, batch_size=32)
)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes of one core each."""
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    made.add_node(num_cpus=1)
    ray.init(address=made.address, log_to_driver=False)
    yield made
    ray.shutdown()
    made.shutdown()


def told(result: RunResult) -> tuple[Any, ...]:
    return result.policy, result.seed, result.duration_s, result.final_accuracy, result.final_loss, result.steps


def test_a_sweep_has_the_results_of_this_host(cluster: Cluster) -> None:
    alone = sweep(SCENARIO, ["bsp", "asp", "local:4"], seeds=range(2), jobs=1)
    with trials_on_ray():
        there = sweep(SCENARIO, ["bsp", "asp", "local:4"], seeds=range(2))
    assert [*map(told, there)] == [*map(told, alone)]


def test_so_have_the_trials_of_a_search(cluster: Cluster) -> None:
    wanted = [SearchTrial(f"switch:bsp@{share},asp", run) for share in (0.5, 1) for run in range(2)]
    trials = SimulatedTrials(SCENARIO, Knob(), reuse=False)
    alone = list(SerialRunner(trials).run(wanted))
    there = list(on_ray(trials, 1).run(wanted))
    assert sorted(there, key=lambda outcome: wanted.index(outcome.trial)) == alone


def test_so_have_the_episodes_of_learning(cluster: Cluster) -> None:
    rollouts = [Rollout(draw(FAMILIES["hidden-0"], seed), "phase", action=0) for seed in range(3)]
    with trials_on_ray():
        there = play_all(rollouts, -1)
    assert [played.end_s for played in there] == [played.end_s for played in play_all(rollouts, 1)]


def place(number: int, folder: Path) -> tuple[int, str]:
    """Where a trial runs; the third kills its worker the first time."""
    mark = folder / "killed"
    if number == 3 and not mark.exists():
        mark.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number, ray.get_runtime_context().get_node_id()


def test_a_worker_that_is_killed_costs_its_trial_only(cluster: Cluster, tmp_path: Path) -> None:
    calls = [joblib.delayed(partial(place, folder=tmp_path))(number) for number in range(12)]
    with trials_on_ray():
        found = joblib.Parallel(n_jobs=-1)(calls)
    assert (tmp_path / "killed").exists()
    assert [number for number, _ in found] == [*range(12)]
    assert len({node for _, node in found}) == 2
