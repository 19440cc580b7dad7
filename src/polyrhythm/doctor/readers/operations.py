"""Traces of jobs with pipeline stages and replicas, one row an operation, as ByteDance's StragglerAnalysis has them.

A folder, or a ``trace-NAME.parquet``, with ``meta-NAME.yaml`` beside it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrhythm.errors import TraceError, UsageError

Columns: TypeAlias = Mapping[str, NDArray[Any]]
"""Values of each row, by column."""

Lanes: TypeAlias = NDArray[np.float64]
"""Seconds by operation, replica and step."""

COLUMNS = ("dp_rank", "stage", "step", "optype", "start_ts", "duration")
OPTIONAL = ("rank", "seq_id", "mb_id", "mc")

MOST_ROWS = 50_000_000
"""Rows of a trace that fit into memory."""


class Operation(NamedTuple):
    """What every replica does in every step: the `number`-th operation of its kind on a stage."""

    kind: str
    number: int
    stage: int


@dataclass(frozen=True, eq=False)
class Operations:
    """A trace in which every replica does the same operations in every step.

    Args:
        source: what was read.
        names: of the first axis of all arrays.
        steps: numbers of the last axis.
        start_s: when each began.
        duration_s: how long it took, waiting for others included.
        micro_batch: of each operation; -1 where there is none.
        chunk: part of the model; 0 where a stage holds only one.
        ranks: global rank of each replica and stage; -1 where nobody knows.
        notes: what was left out.
    """

    source: str
    names: tuple[Operation, ...]
    steps: tuple[int, ...]
    start_s: Lanes
    duration_s: Lanes
    micro_batch: NDArray[np.int64]
    chunk: NDArray[np.int64]
    ranks: NDArray[np.int64]
    notes: tuple[str, ...] = ()

    @property
    def replicas(self) -> int:
        return int(self.start_s.shape[1])

    @property
    def stages(self) -> int:
        return 1 + max(name.stage for name in self.names)

    @cached_property
    def end_s(self) -> Lanes:
        return self.start_s + self.duration_s

    @property
    def step_s(self) -> NDArray[np.float64]:
        return np.asarray(self.end_s.max(axis=(0, 1)) - self.start_s.min(axis=(0, 1)))

    def rows(self, **wanted: object) -> NDArray[np.int64]:
        """Operations of which all named fields have these values."""
        return np.array(
            [
                i
                for i, name in enumerate(self.names)
                if all(getattr(name, key) == value for key, value in wanted.items())
            ],
            dtype=np.int64,
        )


def read_operations(path: Path) -> Operations:
    """The trace of a parquet file, checked against the sizes that the file beside it states."""
    columns = read_columns(path)
    sizes = read_sizes(path.with_name(path.name.replace("trace-", "meta-", 1)).with_suffix(".yaml"))
    return arranged(str(path), *complete(columns), sizes)


def complete(columns: Columns) -> tuple[Columns, tuple[str, ...]]:
    """The columns with those that can be told from others, and what was left out.

    Of ranks that compute one stage together (tensor parallelism) the first stands for all.
    """
    notes: tuple[str, ...] = ()
    if "rank" in columns and len(columns["rank"]):
        place = columns["dp_rank"].astype(np.int64) * (1 + int(columns["stage"].max())) + columns["stage"]
        first = np.full(int(place.max()) + 1, np.iinfo(np.int64).max)
        np.minimum.at(first, place, columns["rank"].astype(np.int64))
        kept = columns["rank"] == first[place]
        if not kept.all():
            columns = {name: values[kept] for name, values in columns.items()}
            notes = ("of ranks that compute one stage together the first was read",)
    if "seq_id" not in columns:
        columns = {**columns, "seq_id": numbered(columns)}
    return columns, notes


def numbered(columns: Columns) -> NDArray[np.int64]:
    """The number of each operation among those of its kind on its rank in its step, in order of time."""
    _, kind = np.unique(columns["optype"].astype(str), return_inverse=True)
    keys = [columns[name].astype(np.int64) for name in ("dp_rank", "stage", "step")]
    order = np.lexsort([columns["start_ts"], kind, *keys])
    same = np.ones(len(order), bool)
    for key in (kind, *keys):
        same[1:] &= key[order][1:] == key[order][:-1]
    starts = np.flatnonzero(~same) if len(order) else np.array([], int)
    starts = np.concatenate(([0], starts)) if len(order) else starts
    number = np.empty(len(order), np.int64)
    number[order] = np.arange(len(order)) - np.repeat(starts, np.diff([*starts, len(order)]))
    return number


def read_columns(path: Path) -> dict[str, NDArray[Any]]:
    try:
        import pyarrow
        import pyarrow.parquet as parquet
    except ImportError as error:
        raise UsageError(f"reading {path} needs pyarrow; run: pip install 'polyrhythm[doctor]'") from error
    try:
        with parquet.ParquetFile(path) as file:
            have = {*file.schema_arrow.names}
            if missing := [name for name in COLUMNS if name not in have]:
                raise TraceError(f"{path} has no column {', '.join(missing)}; give a trace with one row an operation")
            if file.metadata.num_rows > MOST_ROWS:
                raise TraceError(
                    f"{path} has {file.metadata.num_rows:,} rows, more than {MOST_ROWS:,}; give a part of its steps"
                )
            table = file.read(columns=[*COLUMNS, *(name for name in OPTIONAL if name in have)])
    except (OSError, pyarrow.ArrowException) as error:
        raise TraceError(f"cannot read {path}: {str(error).splitlines()[0]}; was it cut off?") from error
    return {name: table.column(name).to_numpy() for name in table.column_names}


def read_sizes(path: Path) -> dict[str, int]:
    """``dp_size: 4`` and the like; nothing if there is no such file."""
    if not path.exists():
        return {}
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"cannot read {path}: {error}") from error
    pairs = [line.partition(":") for line in lines]
    return {
        key.strip(): int(value)
        for key, _, value in pairs
        if key.strip().endswith("_size") and value.strip().isdecimal()
    }


def arranged(source: str, columns: Columns, notes: tuple[str, ...], sizes: Mapping[str, int]) -> Operations:
    """The rows as arrays by operation, replica and step; steps that are not whole are left out."""
    if not len(columns["step"]):
        raise TraceError(f"{source} has no rows; give the trace of a job that has run")
    check_sizes(source, columns, sizes)
    kinds, kind = np.unique(columns["optype"].astype(str), return_inverse=True)
    keys = np.stack([kind, columns["seq_id"].astype(np.int64), columns["stage"].astype(np.int64)], axis=1)
    names, operation = np.unique(keys, axis=0, return_inverse=True)
    steps, step = np.unique(columns["step"].astype(np.int64), return_inverse=True)
    replica = columns["dp_rank"].astype(np.int64)
    shape = len(names), int(replica.max()) + 1, len(steps)
    index = np.ravel_multi_index((operation.ravel(), replica, step), shape)
    seen = np.bincount(index, minlength=int(np.prod(shape))).reshape(shape)
    operations = [Operation(str(kinds[a]), int(b), int(c)) for a, b, c in names]
    check_once(source, seen, operations, steps)
    whole = usual(seen.astype(bool))
    if not whole.any():
        raise TraceError(f"{source} has no step of which every replica has the same operations; give whole steps")
    kept = seen[:, :, whole].any(axis=(1, 2))
    chosen = np.ix_(kept, np.ones(shape[1], bool), whole)
    start_s, duration_s = (spread(columns[name], index, shape)[chosen] for name in ("start_ts", "duration"))
    if not (np.isfinite(start_s).all() and np.isfinite(duration_s).all() and (duration_s >= 0).all()):
        raise TraceError(f"{source} has times that are not finite or negative; give a whole trace")
    left_out = int((~whole).sum())
    return Operations(
        source,
        tuple(operations[place] for place in np.flatnonzero(kept)),
        tuple(int(number) for number in steps[whole]),
        start_s,
        duration_s,
        # Without numbers of micro-batches the passes of a stage come in their order.
        first_of(columns.get("mb_id", columns["seq_id"]), index, shape)[kept],
        first_of(columns.get("mc"), index, shape)[kept],
        ranks_of(columns),
        (*notes, *([f"{left_out} steps of which some operations are missing were left out"] if left_out else [])),
    )


def check_once(source: str, seen: NDArray[np.int64], operations: Sequence[Operation], steps: NDArray[np.int64]) -> None:
    """Every operation at most once by replica and step."""
    for operation, replica, step in np.argwhere(seen > 1)[:1]:
        kind, number, stage = operations[operation]
        raise TraceError(
            f"{source} has {kind} {number} of stage {stage} and replica {replica} twice in step {steps[step]}; "
            "is it of two jobs?"
        )


def spread(column: NDArray[Any], index: NDArray[np.int64], shape: tuple[int, int, int]) -> Lanes:
    """Values of a column by operation, replica and step."""
    full = np.zeros(shape)
    full.ravel()[index] = column
    return full


def usual(seen: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Steps in which every replica did what replicas usually do."""
    often = seen.mean(axis=(1, 2)) > 0.5
    return np.asarray((seen == often[:, None, None]).all(axis=(0, 1)))


def first_of(values: NDArray[Any] | None, index: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    """One value for each operation; -1 where there is none."""
    found = np.full(shape, -1, dtype=np.int64)
    if values is not None:
        known = np.nan_to_num(values.astype(float), nan=-1.0).astype(np.int64)
        found.ravel()[index] = known
    return np.asarray(found.reshape(shape[0], -1).max(axis=1))


def ranks_of(columns: Columns) -> NDArray[np.int64]:
    replica, stage = columns["dp_rank"].astype(np.int64), columns["stage"].astype(np.int64)
    ranks = np.full((replica.max() + 1, stage.max() + 1), -1, dtype=np.int64)
    if "rank" in columns:
        ranks[replica, stage] = columns["rank"]
    return ranks


def check_sizes(source: str, columns: Columns, sizes: Mapping[str, int]) -> None:
    for column, size, what in (("dp_rank", "dp_size", "replica"), ("stage", "pp_size", "stage")):
        found = np.unique(columns[column].astype(np.int64))
        whole = range(sizes.get(size, int(found.max()) + 1))
        missing = sorted({*whole} - {*found.tolist()})
        if missing:
            raise TraceError(
                f"{source} has no operations of {what} {missing[0]}, but the job has {len(whole)} of them; "
                "add what is missing"
            )
