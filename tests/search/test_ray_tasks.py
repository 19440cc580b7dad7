"""Trials as tasks of a Ray that threads play: where they run, how many at a time, and what becomes of errors."""

import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import joblib
import pytest
from typer.testing import CliRunner

from polyrhythm.cli.app import app
from polyrhythm.errors import JobError, ScenarioError
from polyrhythm.search import ray_tasks
from polyrhythm.search.ray_tasks import RayTasks, trials_on_ray
from polyrhythm.sim import Device, Scenario, TimingWorkload, sweep

SCENARIO = Scenario(devices=[Device(count=2)], workload=TimingWorkload(samples=640))


class RayTaskError(Exception):
    def __init__(self, cause: Exception) -> None:
        super().__init__("a page of text")
        self.cause = cause


class WorkerCrashedError(Exception):
    pass


class PlayedRay:
    """A cluster of three cores; whoever asks for a result computes it."""

    def __init__(self, crashes: int = 0) -> None:
        self.exceptions = SimpleNamespace(
            RayTaskError=RayTaskError,
            WorkerCrashedError=WorkerCrashedError,
            NodeDiedError=ConnectionError,
            OutOfMemoryError=MemoryError,
        )
        self.asked: dict[str, Any] = {}
        self.done = self.crashes = self.most = self.now = 0
        self.crashes = crashes
        self.cancelled: list[Any] = []
        self._lock = threading.Lock()

    def remote(self, function: Any) -> Any:
        self.function = function
        return self

    def options(self, **asked: Any) -> Any:
        self.asked = asked
        return SimpleNamespace(remote=lambda *arguments: (self.function, arguments))

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 3.0}

    def cancel(self, reference: Any, force: bool) -> None:
        assert force
        self.cancelled.append(reference)

    def get(self, reference: Any) -> Any:
        function, arguments = reference
        with self._lock:
            self.done, self.now = self.done + 1, self.now + 1
            self.most = max(self.most, self.now)
            if self.done <= self.crashes:
                raise WorkerCrashedError("the worker died\nand more")
        try:
            return function(*arguments)
        except Exception as error:
            raise RayTaskError(error) from None
        finally:
            with self._lock:
                self.now -= 1


@pytest.fixture
def played(monkeypatch: pytest.MonkeyPatch) -> PlayedRay:
    ray = PlayedRay()
    monkeypatch.setattr(ray_tasks, "connected", lambda: ray)
    return ray


def test_runs_go_there_with_the_results_of_this_host(played: PlayedRay) -> None:
    alone = sweep(SCENARIO, ["bsp", "asp"], seeds=range(4), jobs=1)
    with trials_on_ray():
        there = sweep(SCENARIO, ["bsp", "asp"], seeds=range(4))
    assert [(run.policy, run.seed, run.duration_s, run.steps) for run in there] == [
        (run.policy, run.seed, run.duration_s, run.steps) for run in alone
    ]
    assert played.done == 8
    assert played.asked == {"num_cpus": 1, "max_retries": ray_tasks.RETRIES}


@pytest.mark.parametrize(("jobs", "most"), [(1, 1), (2, 2), (-1, 3)])
def test_no_more_run_at_a_time_than_are_asked_for(played: PlayedRay, jobs: int, most: int) -> None:
    there = joblib.Parallel(n_jobs=jobs, backend=RayTasks(played))(joblib.delayed(pow)(2, n) for n in range(12))
    assert there == [2**n for n in range(12)]
    assert played.done == 12
    assert played.most <= most


def refuse() -> None:
    raise ScenarioError("this cannot be")


def test_an_error_is_that_of_the_trial(played: PlayedRay) -> None:
    with trials_on_ray(), pytest.raises(ScenarioError, match="this cannot be"):
        joblib.Parallel(n_jobs=2)([joblib.delayed(refuse)()])


def test_a_trial_that_loses_its_worker_again_and_again_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_tasks, "connected", lambda: PlayedRay(crashes=9))
    with trials_on_ray(), pytest.raises(JobError, match=r"has lost its Ray worker 4 times: the worker died$"):
        joblib.Parallel(n_jobs=2)([joblib.delayed(pow)(2, 2)])


def test_what_runs_is_ended_with_the_command(played: PlayedRay) -> None:
    backend = RayTasks(played)
    backend._running.add("a task")
    backend.abort_everything()
    assert played.cancelled == ["a task"]


@pytest.mark.parametrize(
    "words",
    [
        ["compare", "stragglers-mild", "--timing-only"],
        ["search", "local-straggler"],
        ["learn", "out.npz"],
        ["reproduce", "esync", "--quick"],
    ],
    ids=lambda words: words[0],
)
def test_without_ray_every_command_is_one_line(
    words: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, [*words, "--on", "ray"])
    assert "--on ray needs Ray; install it with: pip install 'polyrhythm[ray]'" in result.output


def test_what_does_not_leave_this_process_or_stays_there_is_refused(played: PlayedRay) -> None:
    words = ["compare", "stragglers-mild", "--timing-only", "--on", "ray"]
    for flags, why in ((["--jobs", "1"], "--jobs 1 computes one run"), (["--trace", "t"], "--trace and --report need")):
        result = CliRunner().invoke(app, [*words, *flags])
        assert result.exit_code
        assert why in result.output
    assert not played.done
