"""Where trials run: one by one, in processes of this host, or through joblib on another cluster."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeAlias

import joblib

from polyrhythm.runtime.launch.ray import connected
from polyrhythm.runtime.wire.parent_death import end_with_starter, interrupts_held
from polyrhythm.search.plan import SearchTrial, TrialOutcome
from polyrhythm.search.ray_tasks import RayTasks
from polyrhythm.sim.tied import delayed

Function: TypeAlias = Callable[[SearchTrial], TrialOutcome]


@dataclass(frozen=True)
class SerialRunner:
    function: Function
    slots: int = 1

    def run(self, trials: Sequence[SearchTrial]) -> Iterator[TrialOutcome]:
        return map(self.function, trials)


class Processes:
    """Processes of this host; all trials of a run number go to the same one, which keeps what they share.

    That is why it is not joblib, whose workers take whatever is next.

    Args:
        build: makes the function that each process calls; both are pickled.
        slots: number of processes.
    """

    def __init__(self, build: Callable[[], Function], slots: int) -> None:
        self.slots = slots
        context = multiprocessing.get_context("spawn")
        self._stack = ExitStack()
        self._futures: list[Future[TrialOutcome]] = []
        self._processes = [
            self._stack.enter_context(ProcessPoolExecutor(1, context, initializer=prepare, initargs=(build,)))
            for _ in range(slots)
        ]

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None or not all(future.done() for future in self._futures):
            self._kill()  # what still runs is for nobody
        self._stack.close()

    def run(self, trials: Sequence[SearchTrial]) -> Iterator[TrialOutcome]:
        with interrupts_held():  # the first call starts a process
            self._futures = [self._processes[trial.run % self.slots].submit(call_prepared, trial) for trial in trials]
        for future in as_completed(self._futures):
            yield future.result()

    def _kill(self) -> None:
        for process in self._processes:
            for child in [*process._processes.values()]:
                child.kill()


FUNCTION: list[Function] = []
"""What a process of `Processes` calls."""


def prepare(build: Callable[[], Function]) -> None:
    """First thing in such a process: it ends with its parent, however that ends."""
    end_with_starter()
    FUNCTION[:] = [build()]


def call_prepared(trial: SearchTrial) -> TrialOutcome:
    return FUNCTION[0](trial)


@dataclass(frozen=True)
class Joblib:
    """Any backend that joblib knows; trials share nothing."""

    function: Function
    slots: int
    backend: str | RayTasks = "loky"

    def run(self, trials: Sequence[SearchTrial]) -> Iterator[TrialOutcome]:
        """Outcomes as they are ready, or at the end where the backend cannot stream them."""
        with joblib.parallel_config(backend=self.backend, n_jobs=self.slots):
            calls = [delayed(self.function)(trial) for trial in trials]
            try:
                outcomes: Any = joblib.Parallel(return_as="generator_unordered")(calls)
            except ValueError:
                outcomes = joblib.Parallel()(calls)
            yield from outcomes


def on_ray(function: Function, slots: int) -> Joblib:
    """Trials on a Ray cluster; see `polyrhythm.search.ray_tasks.trials_on_ray`.

    Raises:
        UnreachableError: without a cluster.
    """
    return Joblib(function, slots, RayTasks(connected()))
