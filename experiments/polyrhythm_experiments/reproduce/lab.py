"""Runs what a reproduction asks for: trials over seeds, in parallel, each remembered as soon as it is done."""

import os
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import msgspec

from polyrhythm.errors import JobError
from polyrhythm.sim import Scenario
from polyrhythm.sim.run import completed, run_one
from polyrhythm.sim.tied import delayed
from polyrhythm.telemetry.result import RunResult
from polyrhythm_experiments.reproduce.patience import EndsBy, run_until
from polyrhythm_experiments.reproduce.store import ResultStore

Key = TypeVar("Key")
Result = TypeVar("Result")
Runs = list[RunResult]
"""One trial's results, a seed each."""

Results: TypeAlias = Mapping[str, Runs]
"""Results of all trials by place on the page."""

Tell: TypeAlias = Callable[[int, int], None]
"""Is called with (finished, planned) runs."""


def nobody(finished: int, planned: int) -> None:
    del finished, planned


TellNow: TypeAlias = Callable[[str], None]
"""Is called with what runs now, in words."""


def nothing(doing: str) -> None:
    del doing


@dataclass(frozen=True)
class Trial:
    """A policy on a scenario.

    Args:
        scenario, policy, target: as in `simulate`.
        until: the run ends as soon as this has converged; None: with its workload.
    """

    scenario: Scenario
    policy: str
    target: float | None = None
    until: EndsBy | None = None

    def made_from(self, seed: int) -> Any:
        """All that a run's result depends on."""
        extra = [] if self.until is None else [self.until]
        return [msgspec.to_builtins(self.scenario), self.policy, self.target, *extra, seed]

    def call(self, index: int, seed: int) -> Any:
        """What joblib is to do; it gives `index` and the result."""
        if self.until is not None:
            return delayed(run_until)(index, self.scenario, self.policy, seed, self.until)
        return delayed(run_one)(index, self.scenario, self.policy, seed, self.target, None)


TrialSeed: TypeAlias = tuple[Trial, int]


@dataclass(frozen=True)
class Lab:
    """Where a reproduction works.

    Args:
        store: of finished work.
        seeds: of the runs.
        quick: a tiny version on the embedded digits, to try the machinery; its numbers mean nothing.
        data: folder of the data sets' parquet files; None downloads.
        jobs: runs at a time; -1 is one a core.
        tell: who is told how far it is.
        now: who is told what runs now.
    """

    store: ResultStore
    seeds: Sequence[int] = (0,)
    quick: bool = False
    data: str | None = None
    jobs: int = 1
    tell: Tell = nobody
    now: TellNow = nothing

    def with_seeds(self, most: int) -> "Lab":
        """The same with so many seeds at most."""
        return replace(self, seeds=self.seeds[:most])

    def task(self, full: str = "Fashion-MNIST") -> str:
        """What is trained on, as a page says it; `full` unless it is a quick look."""
        return "the embedded digits; a quick look, whose numbers mean nothing" if self.quick else full

    @property
    def seed_note(self) -> str:
        return f"{len(self.seeds)}; in brackets, the smallest and the largest"

    def live(
        self, name: str, made_from: Sequence[Any], measure: Callable[[int], Result], kind: type[Result]
    ) -> list[Result]:
        """What `measure` finds on this host with each seed, one after the other; measured once.

        Args:
            name, kind: as in `ResultStore.remember`.
            made_from: all that it depends on but the seed.
            measure: from a seed.
        """
        results = []
        for seed in self.seeds:
            self.now(f"{name}, seed {seed}, on this host")
            results.append(self.store.remember(name, [*made_from, seed], partial(measure, seed), kind))
        return results

    def run(self, trials: Mapping[Key, Trial]) -> dict[Key, Runs]:
        """Results of every trial, a seed each.

        Raises:
            JobError: if a trial cannot run. One that diverges is a result, with status "diverged".
        """
        places = {(key, seed): self._place(trials[key], seed) for key in trials for seed in self.seeds}
        work = {path: (trials[key], seed) for (key, seed), path in places.items()}  # equal trials are one
        found = {path: run for path, (trial, seed) in work.items() if (run := self._found(trial, seed)) is not None}
        missing = {path: task for path, task in work.items() if path not in found}
        self._tell(found, work)
        for path, result in self._fresh(missing):
            found[path] = self._kept(*missing[path], result)
            self._tell(found, work)
        return {key: [found[places[key, seed]] for seed in self.seeds] for key in trials}

    def _tell(self, found: Container[Path], work: Mapping[Path, TrialSeed]) -> None:
        left = [task for path, task in work.items() if path not in found]
        self.tell(len(work) - len(left), len(work))
        at_once = self.jobs if self.jobs > 0 else os.cpu_count() or 1
        self.now("; ".join(f"{trial.policy} on {trial.scenario.name}, seed {seed}" for trial, seed in left[:at_once]))

    def _place(self, trial: Trial, seed: int) -> Path:
        return self.store.path(trial.policy, trial.made_from(seed))

    def _found(self, trial: Trial, seed: int) -> RunResult | None:
        return self.store.find(trial.policy, trial.made_from(seed), RunResult)

    def _fresh(self, missing: Mapping[Path, TrialSeed]) -> Iterator[tuple[Path, RunResult]]:
        paths = list(missing)
        calls = [trial.call(index, seed) for index, (trial, seed) in enumerate(missing.values())]
        for index, result in completed(calls, self.jobs):
            yield paths[index], result

    def _kept(self, trial: Trial, seed: int, result: RunResult) -> RunResult:
        if result.status == "failed":
            raise JobError(f"{trial.policy} on {trial.scenario.name}, seed {seed}: {result.message}")
        return self.store.keep(trial.policy, trial.made_from(seed), result)
