"""The rows of a comparison as text: the columns that the terminal and the page share."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from polyrhythm.report.table import SeedSpread, TableRow
from polyrhythm.telemetry.numbers import NOTHING, count, number, percent, size, times


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
