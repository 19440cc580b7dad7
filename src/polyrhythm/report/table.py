"""One row a policy from the results of all its seeds, ranked; the terminal and the page show the same rows."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, stdev
from typing import NamedTuple

from polyrhythm.telemetry.result import RunResult

BASELINE = "bsp"
"""What a speed-up is over."""


class SeedSpread(NamedTuple):
    """Mean and sample standard deviation over seeds; no deviation for one seed."""

    mean: float
    deviation: float | None = None


@dataclass(frozen=True)
class TableRow:
    """What one policy came to. Means are over the seeds that finished; None where nothing was measured."""

    policy: str
    runs: int
    finished: int
    reached: int
    time_to_target_s: float | None
    duration_s: float | None
    speedup: float | None
    final_accuracy: SeedSpread | None
    updates: float | None
    samples_per_s: float | None
    lssr: float | None
    idle_fraction: float | None
    staleness_mean: float | None
    staleness_max: int | None
    bytes_total: float | None
    gradients_dropped: float | None


def rows(results: Iterable[RunResult], baseline: str = BASELINE) -> list[TableRow]:
    """A row for each policy, the best first.

    With a target the order is by mean time to it: first the policies whose every seed reached it, then those with
    some, then the rest. Without one it is by mean duration. The speed-up is
    ``mean time of the baseline / mean time of the policy``, of the times that rank the table, and only between
    policies whose every seed has one: a mean over the lucky seeds would flatter.
    """
    by_policy: dict[str, list[RunResult]] = {}
    for result in results:
        by_policy.setdefault(result.policy, []).append(result)
    reference_s = fair_time(by_policy.get(baseline, []))
    return sorted((row(policy, runs, reference_s) for policy, runs in by_policy.items()), key=rank)


def row(policy: str, runs: Sequence[RunResult], reference_s: float | None) -> TableRow:
    done = [run for run in runs if run.status == "ok"]
    time_s = fair_time(runs)
    return TableRow(
        policy=policy,
        runs=len(runs),
        finished=len(done),
        reached=sum(run.time_to_target_s is not None for run in done),
        time_to_target_s=mean(done, lambda run: run.time_to_target_s),
        duration_s=mean(done, lambda run: run.duration_s),
        speedup=reference_s / time_s if reference_s and time_s else None,
        final_accuracy=spread([run.final_accuracy for run in done if run.final_accuracy is not None]),
        updates=mean(done, lambda run: run.updates),
        samples_per_s=mean(done, lambda run: run.samples_per_s),
        lssr=mean(done, lambda run: run.lssr),
        idle_fraction=mean(done, lambda run: run.idle_fraction),
        staleness_mean=mean(done, lambda run: run.staleness_mean),
        staleness_max=max((run.staleness_max for run in done if run.staleness_max is not None), default=None),
        bytes_total=mean(done, lambda run: run.bytes_total),
        gradients_dropped=mean(done, lambda run: run.gradients_dropped),
    )


def ranking_time(run: RunResult) -> float | None:
    """The time that a run is ranked by: to the target if there is one, else of the whole run; None if it has none."""
    if run.status != "ok":
        return None
    return run.duration_s if run.target_accuracy is None else run.time_to_target_s


def fair_time(runs: Sequence[RunResult]) -> float | None:
    times = [time for run in runs if (time := ranking_time(run)) is not None]
    return fmean(times) if times and len(times) == len(runs) else None


def rank(row: TableRow) -> tuple[int, float]:
    if not row.finished:
        return 3, inf
    if row.time_to_target_s is None:
        return 2, row.duration_s or inf
    return int(row.reached < row.runs), row.time_to_target_s


def mean(runs: Sequence[RunResult], value: Callable[[RunResult], float | None]) -> float | None:
    values = [v for run in runs if (v := value(run)) is not None]
    return fmean(values) if values else None


def spread(values: Sequence[float]) -> SeedSpread | None:
    if not values:
        return None
    return SeedSpread(fmean(values), stdev(values) if len(values) > 1 else None)
