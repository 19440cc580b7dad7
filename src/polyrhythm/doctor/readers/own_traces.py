"""Evidence from the traces that `polyrhythm run --trace` and the simulator keep: one file a phase."""

from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrhythm.core import Joined, Proceed, Report, Trace
from polyrhythm.doctor.evidence import Evidence, StepPart, StepTimes
from polyrhythm.errors import TraceError

LARGEST = 2 << 30
"""Bytes of a file that fits into memory as events."""


class TracedStep(NamedTuple):
    """One step: when it began, what the worker did itself, and how long it stood in or before the exchange."""

    start_s: float
    compute_s: float
    transfer_s: float
    stood_s: float


def read_own(paths: Sequence[Path]) -> Evidence:
    """The phase with the most steps."""
    for path in paths:
        if path.stat().st_size > LARGEST:
            raise TraceError(f"{path} has more than {LARGEST >> 30} GiB; trace fewer epochs, or give its first lines")
    traces = [Trace.load(path) for path in paths]
    longest = max(traces, key=lambda trace: len(trace.entries))
    left_out = len(traces) - 1
    notes = (f"{left_out} shorter phases of the folder were left out",) if left_out else ()
    return evidence_of_trace(longest, str(paths[traces.index(longest)]), notes)


def evidence_of_trace(trace: Trace, name: str, notes: tuple[str, ...] = ()) -> Evidence:
    made = whole_steps(trace)
    ranks = sorted(made)
    if len(ranks) < 2:
        raise TraceError(f"{name}: has steps of {len(ranks)} workers, and it takes 2 to compare; trace a whole job")
    count = min(map(len, made.values()))
    table = np.array([made[rank][:count] for rank in ranks], dtype=float).reshape(len(ranks), count, 4)
    cluster, policy = trace.header.cluster, trace.header.policy
    return evidence_of_table(
        f"{name}, under {policy}",
        ranks,
        table,
        is_synchronous(trace),
        policy,
        batch_size=cluster.batch_size,
        epoch_samples=cluster.dataset_samples,
        notes=notes,
    )


def evidence_of_table(
    source: str,
    ranks: Sequence[int],
    table: NDArray[np.float64],
    synchronous: bool,
    policy: str,
    batch_size: int | None,
    epoch_samples: int | None,
    hosts: tuple[str, ...] = (),
    notes: tuple[str, ...] = (),
) -> Evidence:
    """Steps by rank and number: when each began, and its seconds of computing, of transfer and of standing."""
    start_s, compute_s, transfer_s, stood_s = np.moveaxis(table, 2, 0)
    if not synchronous:
        notes = (*notes, f"under {policy} nobody waits in each step: what is lost is what bsp would lose")
    shared_s, moved_s = shared(stood_s, synchronous), shared(transfer_s, synchronous)
    parts: dict[StepPart, StepTimes] = {"computing": compute_s, "transfer": transfer_s - moved_s}
    return Evidence(
        source,
        tuple(ranks),
        hosts,
        start_s,
        parts,
        stood_s - shared_s,
        shared_s + moved_s,
        batch_size,
        epoch_samples,
        synchronous,
        notes=notes,
    )


def shared(times_s: StepTimes, synchronous: bool) -> StepTimes:
    """What all ranks take in each step, which is the exchange itself; nothing if they do not meet."""
    return np.array(np.broadcast_to(times_s.min(axis=0), times_s.shape)) if synchronous else np.zeros_like(times_s)


def is_synchronous(trace: Trace) -> bool:
    """Whether all that proceeds proceeds together."""
    released = [
        decision.workers for _, decisions in trace.entries for decision in decisions if isinstance(decision, Proceed)
    ]
    return bool(released) and fmean(map(len, released)) > trace.header.cluster.workers - 0.5


def whole_steps(trace: Trace) -> dict[int, list[TracedStep]]:
    """Steps on whole mini-batches by worker, but for the first of each epoch, before which the workers stand still.

    The wait for the others follows the report in the simulator, and precedes it with real workers in synchronous mode.
    """
    steps: dict[int, list[TracedStep]] = defaultdict(list)
    released: dict[int, float] = {}
    pending: dict[int, TracedStep] = {}
    first: set[int] = set()
    size = max((event.samples for event, _ in trace.entries if isinstance(event, Report)), default=0)
    for event, decisions in trace.entries:
        if isinstance(event, Joined):
            first.update(event.workers)
            pending.clear()
        elif isinstance(event, Report) and event.worker in released:
            step = traced(event, released[event.worker])
            if event.samples == size and event.worker not in first:
                pending[event.worker] = step
            first.discard(event.worker)
        for decision in decisions:
            if isinstance(decision, Proceed):
                for worker in decision.workers:
                    released[worker] = event.time_s
                    if step_made := pending.pop(worker, None):
                        ended_s = step_made.start_s + step_made.compute_s + step_made.transfer_s + step_made.stood_s
                        late_s = max(0.0, event.time_s - ended_s)
                        steps[worker].append(step_made._replace(stood_s=step_made.stood_s + late_s))
    return steps


def traced(report: Report, released_s: float) -> TracedStep:
    """A report's step; what it took beside computing, transfers and waiting was the worker's own, too."""
    rest_s = report.time_s - released_s - report.step_s - report.transfer_s - report.wait_s
    return TracedStep(released_s, report.step_s + max(0.0, rest_s), report.transfer_s, report.wait_s)
