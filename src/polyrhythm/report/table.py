"""One row a policy from the results of all its seeds, ranked, and its text: the terminal and the page show the same."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean, stdev
from typing import NamedTuple

from polyrhythm.telemetry.numbers import NOTHING, count, number, percent, size, times
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


class Column(NamedTuple):
    heading: str
    meaning: str
    text: Callable[[TableRow], str]


def columns(rows: Sequence[TableRow], has_target: bool) -> tuple[Column, ...]:
    """The columns; without a target the first figure is the duration of the whole run. LSSR where somebody has one."""
    times = TO_TARGET if has_target else WHOLE_RUN
    local = (LSSR,) if any(row.lssr for row in rows) else ()
    return (Column("policy", "spec of the policy", policy), *times, *OTHERS, *local)


def headings(rows: Sequence[TableRow], has_target: bool) -> list[str]:
    return [column.heading for column in columns(rows, has_target)]


def cells(rows: Sequence[TableRow], has_target: bool) -> list[list[str]]:
    return [[column.text(row) for column in columns(rows, has_target)] for row in rows]


def policy(row: TableRow) -> str:
    lost = row.runs - row.finished
    return f"{row.policy} ({lost} of {row.runs} failed)" if lost else row.policy


def time_to_target(row: TableRow) -> str:
    if row.time_to_target_s is None:
        return NOTHING if not row.finished else "never"
    partly = f" ({row.reached} of {row.runs})" if row.reached < row.runs else ""
    return number(row.time_to_target_s) + partly


def accuracy(value: SeedSpread | None) -> str:
    """A mean in percent, with its deviation.

    >>> accuracy(SeedSpread(0.9512, 0.0031)), accuracy(SeedSpread(0.95)), accuracy(None)
    ('95.1 ± 0.3 %', '95.0 %', '-')
    """
    if value is None:
        return NOTHING
    deviation = "" if value.deviation is None else f" ± {100 * value.deviation:.1f}"
    return f"{100 * value.mean:.1f}{deviation} %"


def staleness(row: TableRow) -> str:
    if row.staleness_mean is None or row.staleness_max is None:
        return NOTHING
    return f"{row.staleness_mean:.1f} / {row.staleness_max}"


TO_TARGET = (
    Column("time to target (s)", "mean over the seeds that reached the target accuracy", time_to_target),
    Column("speed-up over bsp", "mean time to target of bsp / that of this policy", lambda row: times(row.speedup)),
)
WHOLE_RUN = (
    Column("duration (s)", "mean time for the whole workload", lambda row: number(row.duration_s)),
    Column("speed-up over bsp", "mean duration of bsp / that of this policy", lambda row: times(row.speedup)),
)
OTHERS = (
    Column("final accuracy", "mean ± standard deviation over seeds", lambda row: accuracy(row.final_accuracy)),
    Column("updates", "changes of the global parameters", lambda row: count(row.updates)),
    Column("samples/s", "of the whole job", lambda row: number(row.samples_per_s)),
    Column("idle", "share of the workers' time spent waiting", lambda row: percent(row.idle_fraction)),
    Column("staleness mean / max", "updates between a gradient's read and its arrival", staleness),
    Column("bytes", "pushed and pulled by all workers", lambda row: size(row.bytes_total)),
    Column("dropped", "gradients that were computed but not applied", lambda row: count(row.gradients_dropped)),
)
LSSR = Column("LSSR", "share of the steps that no exchange followed", lambda row: number(row.lssr))
