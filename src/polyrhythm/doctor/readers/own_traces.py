"""Evidence from the traces that `polyrhythm run --trace` and the simulator keep: one file a phase."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from polyrhythm.core import Event, Joined, Left, Proceed, Report, Trace
from polyrhythm.doctor.evidence import Evidence, StepPart, StepTimes
from polyrhythm.errors import TraceError

LARGEST = 2 << 30
"""Bytes of a file that fits into memory as events."""


EQUALISED = (
    "under {} mini-batches are unequal: what is told is of equal ones, as under bsp, if a step takes as long as it has "
    "samples"
)


class TracedStep(NamedTuple):
    """One step: when it began, what the worker did itself, how long it stood in or before the exchange, and its
    samples.
    """

    start_s: float
    compute_s: float
    transfer_s: float
    stood_s: float
    samples: int


RankSteps: TypeAlias = dict[int, list[TracedStep]]
"""Steps by worker, in the order in which they were made."""


def read_own(paths: Sequence[Path]) -> Evidence:
    """The phase with the most steps."""
    begun = [path for path in paths if begins(path)] or list(paths[:1])
    read = {path: read_lines(path) for path in begun}
    check_one_job(paths[0].parent, {path: trace.header.about.get("job") for path, (trace, _) in read.items()})
    longest = max(read, key=lambda path: len(read[path][0].entries))
    trace, cut = read[longest]
    notes = (f"the last line of {longest.name} is cut off (was the job killed?): the others count",) if cut else ()
    if left_out := len(paths) - 1:
        notes = (omitted(left_out), *notes)
    return evidence_of_trace(trace, str(longest), notes)


def omitted(count: int) -> str:
    """How many files of the folder do not count: phases of one job, or simulated runs.

    >>> omitted(1), omitted(2)
    ('1 shorter trace of the folder was left out', '2 shorter traces of the folder were left out')
    """
    return f"{count} shorter {'trace of the folder was' if count == 1 else 'traces of the folder were'} left out"


def begins(path: Path) -> bool:
    """Whether its first line is whole; the file of a phase whose coordinator was killed early may be empty."""
    with open(path, "rb") as file:
        return file.readline().endswith(b"\n")


def read_lines(path: Path) -> tuple[Trace, bool]:
    """The whole lines of a trace, and whether its last one is not whole, which was being written."""
    size = path.stat().st_size
    if size > LARGEST:
        raise TraceError(f"{path} has more than {LARGEST >> 30} GiB; trace fewer epochs, or give its first lines")
    with open(path, "rb") as file:
        file.seek(max(0, size - 1))
        ended = file.read() == b"\n"
    if ended:
        return Trace.load(path), False
    with open(path, encoding="utf-8", errors="replace") as lines:
        return Trace.parse((line for line in lines if line.endswith("\n")), str(path)), True


def check_one_job(folder: Path, jobs: Mapping[Path, str | None]) -> None:
    """Phases are those of one job; simulated runs have no name of a job."""
    names = sorted({str(job) for job in jobs.values() if job is not None})
    if len(names) > 1:
        more = " and more" if len(names) > 8 else ""
        raise TraceError(
            f"{str(folder)!r} has traces of {len(names)} jobs ({', '.join(names[:8])}{more}); "
            "give a folder with those of one, or name a file"
        )


def evidence_of_trace(trace: Trace, name: str, notes: tuple[str, ...] = ()) -> Evidence:
    unequal = deals_shares(trace)
    stretches = whole_steps(trace, unequal)
    made = max(stretches, key=lambda made: (fewest(made), len(made)))
    if len(made) < 2:
        raise TraceError(f"{name}: has steps of {len(made)} workers, and it takes 2 to compare; trace a whole job")
    synchronous = is_synchronous(trace)
    rows = together(made) if synchronous else in_order(made)
    ranks = sorted(rows)
    if not rows[ranks[0]]:
        raise TraceError(
            f"{name}: under {trace.header.policy} there is no step that all workers have made to its end, so nobody "
            "can be compared; trace the job under bsp or asp"
        )
    table = np.array([rows[rank] for rank in ranks], dtype=float).reshape(len(ranks), len(rows[ranks[0]]), 5)
    cluster, policy = trace.header.cluster, trace.header.policy
    return evidence_of_table(
        f"{name}, under {policy}",
        ranks,
        table[:, :, :4],
        synchronous,
        policy,
        samples=table[:, :, 4] if unequal else None,
        batch_size=cluster.batch_size,
        epoch_samples=cluster.dataset_samples,
        notes=(*notes, *left_out(stretches, made, table.shape[1])),
    )


def fewest(made: RankSteps) -> int:
    """Steps of the worker that has made fewest, where there is somebody to compare it with."""
    return min(map(len, made.values())) if len(made) > 1 else 0


def together(made: RankSteps) -> RankSteps:
    """Steps that all have begun at one time; where one has made a smaller one, those of the others go."""
    by_start = {rank: {step.start_s: step for step in steps} for rank, steps in made.items()}
    shared = sorted(set.intersection(*({*steps} for steps in by_start.values())))
    return {rank: [steps[start_s] for start_s in shared] for rank, steps in by_start.items()}


def in_order(made: RankSteps) -> RankSteps:
    """As many steps of each as all have made: the first of one beside the first of another."""
    return {rank: steps[: fewest(made)] for rank, steps in made.items()}


def left_out(stretches: Sequence[RankSteps], made: RankSteps, count: int) -> tuple[str, ...]:
    """What does not count, in words."""
    total = sum(len(steps) for each in stretches for steps in each.values())
    kept = count * len(made)
    changes = sum(bool(each) for each in stretches) - 1
    if changes:
        return (f"workers came or left: the longest time with the same ones counts, {kept:,} of {total:,} steps",)
    return (f"{total - kept:,} of {total:,} steps were left out: others made none beside them",) if total > kept else ()


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
    samples: StepTimes | None = None,
) -> Evidence:
    """Steps by rank and number: when each began, and its seconds of computing, of transfer and of standing.

    With `samples` of unequal mini-batches, the evidence is that of equal ones.
    """
    start_s, compute_s, transfer_s, stood_s = np.moveaxis(table, 2, 0)
    if samples is not None:
        compute_s = compute_s * samples.mean(axis=0) / np.maximum(samples, 1)
        own_s = compute_s + transfer_s
        stood_s = stood_s.min(axis=0) + own_s.max(axis=0) - own_s
        notes = (*notes, EQUALISED.format(policy))
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
        equalised=samples is not None,
        notes=notes,
    )


def shared(times_s: StepTimes, synchronous: bool) -> StepTimes:
    """What all ranks take in each step, which is the exchange itself; nothing if they do not meet."""
    return np.array(np.broadcast_to(times_s.min(axis=0), times_s.shape)) if synchronous else np.zeros_like(times_s)


def is_synchronous(trace: Trace) -> bool:
    """Whether all that proceeds proceeds together."""
    members = Members()
    missing = []
    for event, decisions in trace.entries:
        members.see(event)
        missing += [len(members.there) - len(each.workers) for each in decisions if isinstance(each, Proceed)]
    return bool(missing) and fmean(missing) < 0.5


class Members:
    """Who is in the job: from joining on, over the ends of epochs, until they die or are removed."""

    def __init__(self) -> None:
        self.there: set[int] = set()
        self._live: set[int] = set()

    def see(self, event: Event) -> bool:
        """Whether others are there from this event on."""
        before = {*self.there}
        if isinstance(event, Joined):
            # Where nobody is live, all that are still there come back.
            self.there = self.there | {*event.workers} if self._live else {*event.workers}
            self._live |= {*event.workers}
        elif isinstance(event, Left):
            self._live.discard(event.worker)
            if event.reason != "finished":
                self.there.discard(event.worker)
        return self.there != before


def deals_shares(trace: Trace) -> bool:
    """Whether mini-batches of a round are unequal, as under balanced."""
    return any(isinstance(each, Proceed) and each.shares for _, decisions in trace.entries for each in decisions)


def of_whole_rounds(made: RankSteps) -> RankSteps:
    """The steps of rounds with as many samples as any has; the last one of an epoch has fewer."""
    totals = Counter[float]()
    for steps in made.values():
        for step in steps:
            totals[step.start_s] += step.samples
    whole = max(totals.values(), default=0)
    return {rank: [step for step in steps if totals[step.start_s] == whole] for rank, steps in made.items()}


def whole_steps(trace: Trace, unequal: bool) -> list[RankSteps]:
    """Steps on whole mini-batches by worker, but for the first of each epoch, before which the workers stand still.

    There is one table for each time with the same workers. The wait for the others follows the report in the simulator,
    and precedes it with real workers in synchronous mode.
    """
    stretches: list[RankSteps] = [defaultdict(list)]
    members = Members()
    released: dict[int, float] = {}
    pending: dict[int, TracedStep] = {}
    first: set[int] = set()
    size = max((event.samples for event, _ in trace.entries if isinstance(event, Report)), default=0)
    for event, decisions in trace.entries:
        if members.see(event):
            stretches.append(defaultdict(list))
            released.clear()  # a step that has begun with others is left out
            pending.clear()
        if isinstance(event, Joined):
            first.update(event.workers)
            pending.clear()
        elif isinstance(event, Report) and event.worker in released:
            step = traced(event, released[event.worker])
            if (unequal or event.samples == size) and event.worker not in first:
                pending[event.worker] = step
            first.discard(event.worker)
        for decision in decisions:
            if isinstance(decision, Proceed):
                for worker in decision.workers:
                    released[worker] = event.time_s
                    if step_made := pending.pop(worker, None):
                        stretches[-1][worker].append(until(step_made, event.time_s))
    return [of_whole_rounds(made) for made in stretches] if unequal else stretches


def until(step: TracedStep, released_s: float) -> TracedStep:
    """The step with what the worker stood after it until it went on."""
    ended_s = step.start_s + step.compute_s + step.transfer_s + step.stood_s
    return step._replace(stood_s=step.stood_s + max(0.0, released_s - ended_s))


def traced(report: Report, released_s: float) -> TracedStep:
    """A report's step; what it took beside computing, transfers and waiting was the worker's own, too."""
    rest_s = report.time_s - released_s - report.step_s - report.transfer_s - report.wait_s
    return TracedStep(released_s, report.step_s + max(0.0, rest_s), report.transfer_s, report.wait_s, report.samples)
