"""Logs of finished runs: a CSV file read into pools of runs, one for each setup and BSP share."""

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from polyrhythm.errors import DataError, did_you_mean

COLUMNS = ("setup", "bsp_percent", "run", "converged_accuracy", "train_time_s")
"""What a log must have, in any order; further columns are ignored, but for `notes`."""

EXCLUDED = r"(^|;)\s*excluded|mislabel"
"""Notes of runs that are left out by default: a note that begins with EXCLUDED, or one that says mislabelled."""

BLANK = ("", "nan", "none", "null", "na", "n/a", "inf", "-inf", "diverged")
"""Accuracies of runs that diverged."""


@dataclass(frozen=True, slots=True)
class Pool:
    """The runs of one setup at one BSP share, in the order of the log.

    Args:
        accuracies: shares of 1; a run that diverged without an accuracy has 0.
        times_s: what each run took, also if it diverged.
    """

    accuracies: tuple[float, ...] = ()
    times_s: tuple[float, ...] = ()

    def __len__(self) -> int:
        return len(self.accuracies)

    @property
    def accuracy(self) -> float:
        return math.fsum(self.accuracies) / len(self)

    @property
    def time_s(self) -> float:
        return math.fsum(self.times_s) / len(self)

    def plus(self, accuracy: float, time_s: float) -> "Pool":
        return Pool((*self.accuracies, accuracy), (*self.times_s, time_s))


@dataclass(slots=True)
class RunLog:
    """Pools by setup and BSP share in percent, and how many rows were left out."""

    setups: dict[str, dict[float, Pool]] = field(default_factory=dict)
    excluded: int = 0


@dataclass(frozen=True, slots=True)
class LogRow:
    setup: str
    percent: float
    run: str
    accuracy: float
    time_s: float


def read_log(path: str | Path, exclude: str = EXCLUDED) -> RunLog:
    """Read a log of runs.

    Args:
        path: CSV file with the columns `COLUMNS` and, if there are remarks, `notes`.
        exclude: rows whose notes this regular expression finds, in either case, are left out; empty: none.
    """
    try:
        unwanted = re.compile(exclude, re.IGNORECASE) if exclude else None
    except re.error as error:
        raise DataError(f"--exclude {exclude!r} is no regular expression: {error}") from error
    log, seen = RunLog(), dict[tuple[str, float, str], int]()
    for line, cells in lines(Path(path)):
        if unwanted and unwanted.search(cells.get("notes", "")):
            log.excluded += 1
            continue
        row = read_row(cells, f"{path}, line {line}")
        first = seen.setdefault((row.setup, row.percent, row.run), line)
        if first != line:
            raise DataError(f"{path}, line {line}: run {row.run} is in line {first} already; number the runs apart")
        pools = log.setups.setdefault(row.setup, {})
        pools[row.percent] = pools.get(row.percent, Pool()).plus(row.accuracy, row.time_s)
    if not log.setups:
        raise DataError(f"{path} has no runs" + (f" but {log.excluded} excluded ones" if log.excluded else ""))
    return log


def lines(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Line numbers and cells by column, blanks stripped; empty lines are passed over."""
    try:
        with open(path, encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, skipinitialspace=True)
            check_columns(path, [(name or "").strip() for name in reader.fieldnames or ()])
            for cells in reader:
                texts = {key.strip(): value.strip() for key, value in cells.items() if key and isinstance(value, str)}
                if any(texts.values()):
                    yield reader.line_num, texts
    except OSError as error:
        raise DataError(f"cannot read {str(path)!r}: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is no CSV file in UTF-8: {error}") from error


def check_columns(path: Path, names: list[str]) -> None:
    missing = [column for column in COLUMNS if column not in names]
    if missing:
        known = did_you_mean(missing[0], names) if any(names) else "the file is empty"
        raise DataError(f"{path} has no column {missing[0]!r}; its first line must name {', '.join(COLUMNS)} ({known})")


def read_row(cells: Mapping[str, str], place: str) -> LogRow:
    for column in ("setup", "run"):
        if not cells.get(column):
            raise DataError(f"{place}: {column} is empty")
    percent = number(cells, "bsp_percent", place, 0, 100)
    diverged = cells.get("converged_accuracy", "").lower() in BLANK
    accuracy = 0.0 if diverged else number(cells, "converged_accuracy", place, 0, 1)
    time_s = number(cells, "train_time_s", place, 0, math.inf)
    return LogRow(cells["setup"], percent, cells["run"], accuracy, time_s)


def number(cells: Mapping[str, str], column: str, place: str, least: float, most: float) -> float:
    """A finite number within bounds; a percent sign behind it is allowed in a column of percents."""
    text = cells.get(column, "")
    try:
        value = float(text.removesuffix("%") if column == "bsp_percent" else text)
    except ValueError:
        value = math.nan
    if not (math.isfinite(value) and least <= value <= most):
        bound = f"from {least:g} to {most:g}" if math.isfinite(most) else f"of at least {least:g}"
        raise DataError(f"{place}: {column} must be a number {bound} but is {text!r}")
    return value
