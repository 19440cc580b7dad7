"""Evidence from what torch.profiler has written, one file a rank.

A rank has arrived at the exchange of a step when it launches the last collective of it, and the exchange is over when
the last one ends. Steps are those of the profiler's schedule, or from one optimizer step to the next.
"""

import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import numpy as np

from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.marks import RankMarks, StepMarks, evidence_of
from polyrhythm.errors import TraceError

COLLECTIVE = re.compile(r"^(gloo|nccl|mpi|ucc|xccl):|^ncclDevKernel|^ncclKernel")
STEP = re.compile(r"^ProfilerStep#(\d+)$")
LAUNCH = re.compile(r"^c10d::")
"""Where a rank hands a collective over, on its own thread."""

NAMED = re.compile(r"rank[-_]?(\d+)")
"""A file that says its rank in its name only."""

LOADER = "enumerate(DataLoader)"
OPTIMIZER = "Optimizer.step#"
FORWARD = "DistributedDataParallel.forward"
BACKWARD = "autograd::engine::evaluate_function"
ON_DEVICE = "gpu_user_annotation"
"""Category of the copies, later by a queue's length, that a GPU's track has of what the script's thread has named."""

LARGEST = 2 << 30
"""Bytes of a file that fits into memory as events."""


class KinetoEvent(msgspec.Struct):
    """One event; times in microseconds."""

    name: str = ""
    ph: str = ""
    cat: str = ""
    ts: float = 0.0
    dur: float = 0.0


class DistributedInfo(msgspec.Struct):
    rank: int
    world_size: int = 0


class KinetoFile(msgspec.Struct):
    traceEvents: list[KinetoEvent]  # noqa: N815
    distributedInfo: DistributedInfo | None = None  # noqa: N815
    host_name: str = ""


class TimeSpan(NamedTuple):
    start_s: float
    end_s: float


class KinetoRank(NamedTuple):
    marks: RankMarks
    hidden_s: float
    exchange_s: float
    world: int


def read_kineto(paths: Sequence[Path]) -> Evidence:
    """The steps that are in the files of all ranks."""
    ranks = [read_rank(path) for path in paths]
    exchange_s = sum(rank.exchange_s for rank in ranks)
    return evidence_of(
        f"{paths[0].parent}, {len(paths)} files of torch.profiler",
        [rank.marks for rank in ranks],
        overlap=sum(rank.hidden_s for rank in ranks) / exchange_s if exchange_s else None,
        world=max(rank.world for rank in ranks),
    )


def read_rank(path: Path) -> KinetoRank:
    file = decoded(path)
    info = file.distributedInfo or named(path)
    events = [event for event in file.traceEvents if event.ph == "X" and event.cat != ON_DEVICE]
    collectives = spans(events, lambda name: COLLECTIVE.match(name) is not None)
    if not collectives:
        raise TraceError(f"{path} has no collective; profile whole steps, with ProfilerActivity.CPU")
    steps = dict(step_marks(path, events, collectives))
    backward = spans(events, lambda name: name.startswith(BACKWARD))
    hidden_s, exchange_s = overlap(collectives, backward)
    marks = RankMarks(info.rank, file.host_name, path.name, steps)
    return KinetoRank(marks, hidden_s, exchange_s, info.world_size)


def named(path: Path) -> DistributedInfo:
    found = NAMED.search(path.name)
    if found is None:
        raise TraceError(f"{path} does not say its rank; profile after init_process_group, or name it rank0.json")
    return DistributedInfo(int(found[1]))


def decoded(path: Path) -> KinetoFile:
    try:
        return msgspec.json.decode(contents(path), type=KinetoFile)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(f"cannot read {path}: {error}; was it cut off?") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is no whole file of torch.profiler: {error}; was it cut off?") from error


def profiled(path: Path) -> bool:
    """Whether it begins as a file of torch.profiler does, and not as another one of JSON."""
    with suppress(OSError, EOFError, zlib.error), gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
        return b'"schemaVersion"' in file.read(200)
    return False


def contents(path: Path) -> bytes:
    if path.stat().st_size <= LARGEST:
        data = unpacked(path) if path.suffix == ".gz" else path.read_bytes()
        if len(data) <= LARGEST:
            return data
    raise TraceError(f"{path} has more than {LARGEST >> 30} GiB; profile fewer steps (schedule(active=100))")


def unpacked(path: Path) -> bytes:
    """No more than shows that it is too much."""
    with gzip.open(path) as file:
        return file.read(LARGEST + 1)


def spans(events: Sequence[KinetoEvent], wanted: Callable[[str], bool]) -> list[TimeSpan]:
    found = [TimeSpan(event.ts * 1e-6, (event.ts + event.dur) * 1e-6) for event in events if wanted(event.name)]
    return sorted(found)


def step_marks(
    path: Path, events: Sequence[KinetoEvent], collectives: list[TimeSpan]
) -> Iterator[tuple[int, StepMarks]]:
    loads = spans(events, lambda name: name.startswith(LOADER))
    forwards = spans(events, lambda name: name == FORWARD)
    optimizers = spans(events, lambda name: name.startswith(OPTIMIZER))
    launches = spans(events, lambda name: LAUNCH.match(name) is not None) or collectives
    passes = merged(spans(events, lambda name: name.startswith(BACKWARD)))
    last_s = -np.inf
    for number, window in boundaries(path, events, optimizers):
        within = [span for span in collectives if window.start_s <= span.start_s < window.end_s]
        if not within:
            continue
        end_s = max(span.end_s for span in within)
        started_s = max(span.start_s for span in within)
        arrival_s = max(
            (span.start_s for span in launches if window.start_s <= span.start_s <= started_s), default=started_s
        )
        since = TimeSpan(last_s, arrival_s)
        detail = {
            "forward pass": inside(forwards, since),
            "backward pass": inside(passes, since),
            "optimizer": inside(optimizers, since),
        }
        yield number, StepMarks(arrival_s, end_s, loading_s=inside(loads, since), detail=detail)
        last_s = end_s


def boundaries(path: Path, events: Sequence[KinetoEvent], optimizers: list[TimeSpan]) -> list[tuple[int, TimeSpan]]:
    """Steps by number: as the profiler was told, or up to the end of each optimizer step."""
    told = [
        (int(found[1]), TimeSpan(event.ts * 1e-6, (event.ts + event.dur) * 1e-6))
        for event in events
        if (found := STEP.match(event.name))
    ]
    if told:
        return sorted(told)
    if not optimizers:
        raise TraceError(f"{path} has no steps; call prof.step() after each, or profile the optimizer's, too")
    ends = [-np.inf, *(span.end_s for span in optimizers)]
    return [(number, TimeSpan(begin, end)) for number, (begin, end) in enumerate(pairwise(ends))]


def inside(found: Sequence[TimeSpan], window: TimeSpan) -> float:
    """Seconds of the spans within a window."""
    return sum(max(0.0, min(span.end_s, window.end_s) - max(span.start_s, window.start_s)) for span in found)


def overlap(collectives: Sequence[TimeSpan], backward: Sequence[TimeSpan]) -> tuple[float, float]:
    """Seconds in which a collective was under way while gradients were computed, and seconds of all collectives.

    >>> overlap([TimeSpan(1.0, 3.0), TimeSpan(2.0, 4.0)], [TimeSpan(0.0, 2.5)])
    (1.5, 3.0)
    """
    exchanges, passes = merged(collectives), merged(backward)
    return sum(inside(passes, exchange) for exchange in exchanges), sum(end - start for start, end in exchanges)


def merged(found: Sequence[TimeSpan]) -> list[TimeSpan]:
    whole: list[TimeSpan] = []
    for span in sorted(found):
        if whole and span.start_s <= whole[-1].end_s:
            whole[-1] = TimeSpan(whole[-1].start_s, max(whole[-1].end_s, span.end_s))
        else:
            whole.append(span)
    return whole
