"""What a coordinator writes down about its job: a trace of each phase, and what was measured."""

import contextlib
import logging
import os
import re
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any, Protocol, TextIO

import msgspec

from polyrhythm.core import Cluster, Decisions, Event, Header, Joined, Left, Policy, Report, TraceWriter
from polyrhythm.core.misuse import malformed
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import PolicyError
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.monitor import JobMonitor
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import EpochDone, NonFiniteLoss
from polyrhythm.telemetry import Gauge, Mark, RunResult, Stragglers
from polyrhythm.telemetry.files import write_whole
from polyrhythm.training.compression import parse_compression

log = logging.getLogger(__name__)


LEAST_LATE_S = 0.002
"""By how much a worker's step must be longer than the median; of steps of a millisecond all else is noise."""


class JobRecorder:
    """Writes what the config asks for, and nothing otherwise.

    Args:
        config: of the job; `trace` and `figures` say where to write.
        job: what is recorded.
        monitor: hears the same, and who is late.
        trainings: of the workers' scripts that are over.
    """

    def __init__(self, config: JobConfig, job: Job, monitor: JobMonitor, trainings: int = 0) -> None:
        self._config, self._job, self._monitor = config, job, monitor
        self.stragglers = Stragglers(tell=self._tell_late, least_s=LEAST_LATE_S)
        self._gauge = Gauge(self.stragglers) if config.figures is not None else None
        name = f"{config.job}-training-{trainings + 1}" if trainings else config.job
        self._traces = TraceFiles(config.trace, name, log.warning, goes_on=trainings > 0)
        self._idle_until_s = 0.0
        self._finite = True
        self.backlog: list[tuple[Event | int, Any]] = []
        """What was observed and is not yet written down: events with decisions, messages with their rank."""

    def catch_up(self) -> None:
        """Write down what was observed."""
        backlog = self.backlog.copy()
        self.backlog.clear()
        for seen, what in backlog:
            if isinstance(seen, int):
                self._monitor.heard(seen, what)
            else:
                self._record(seen, what)

    def begin_phase(
        self, number: int, policy: Policy[Any], cluster: Cluster, message_bytes: int, state: str = ""
    ) -> None:
        self.catch_up()
        if number == 1:
            self._idle_until_s = time.process_time()
        push_bytes = message_bytes * parse_compression(self._config.compress).ratio
        how = runtime_placement(policy) != "servers", message_bytes, push_bytes, self._config.averaging == "server"
        self._monitor.links.begin_phase(*how)
        if self._gauge is not None:
            self._gauge.begin_phase(*how)
        self._traces.begin_phase(number, policy, cluster, state)

    def mend(self, phase: int) -> None:
        """The coordinator before this one was killed in that phase."""
        self._traces.mend(phase)

    def _record(self, event: Event, decisions: Decisions) -> None:
        try:
            self._write(event, decisions)
        except Exception:
            if not malformed(decisions):  # else the policy has failed
                raise

    def _write(self, event: Event, decisions: Decisions) -> None:
        self._traces.write(event, decisions)
        if self._gauge is not None:
            self._gauge.record(event, decisions)
        elif type(event) is Report:
            self.stragglers.report(event)
        else:
            self._follow(event)
        self._monitor.record(event, decisions)

    def remark(self, text: str) -> None:
        """A policy says what it does and why: in the log, on the page and in the trace."""
        self.catch_up()
        log.warning("%s", text)
        self._monitor.tell("decision", text)
        self._traces.remark(text)

    def _tell_late(self, line: str) -> None:
        log.warning(line)
        self._monitor.tell("straggler", line)

    def _follow(self, event: Event) -> None:
        # Who is late is known also of a job that is not measured.
        match event:
            case Joined(workers=workers, time_s=time_s):
                for worker in workers:
                    self.stragglers.join(worker, time_s)
            case Left(worker=worker, reason=reason) if reason != "finished":
                self.stragglers.leave(worker)

    def end_epoch(self, message: EpochDone) -> EpochDone:
        """An epoch is over for everyone; of several calls for one epoch the first counts. Workers hear who is late."""
        self.catch_up()
        if self._gauge is not None and message.epoch == len(self._gauge.marks):
            self._gauge.end_epoch(self._mark())
        return msgspec.structs.replace(message, arrivals=self.stragglers.arrivals())

    def not_finite(self, worker: int, message: NonFiniteLoss) -> None:
        """The first such loss of the job is worth a line; by the next exchange all others follow from it."""
        if self._finite:
            log.warning(
                "the loss of rank %d is %g in its step %d, and the others take it over; lower the learning rate, clip "
                "gradients, or have the job end or go back: --on-divergence end, --on-divergence rollback",
                worker,
                message.loss,
                message.step,
            )
        self._finite = False

    def lost(self, worker: int) -> None:
        """A member of the job is gone; if a policy still sees it, that one's `Left` will tell."""
        self.catch_up()
        if self._gauge is not None and worker not in self._job.ledger.accounts:
            self._gauge.lost(worker, self._job.clock())

    def close(self, policy_figures: dict[str, float]) -> None:
        self.catch_up()
        self._traces.close()
        config = self._config
        if self._gauge is None or config.figures is None:
            return
        blank = RunResult(
            scenario=config.job, policy=config.policy, seed=0, where="local", workers=config.workers, batch_size=0
        )
        self._gauge.meter.policy_figures = policy_figures
        blank.server_busy_s = time.process_time() - self._idle_until_s
        blank.rolled_back_samples, blank.message = self._job.rolled_back_samples, self._job.trouble
        figures = self._gauge.figures(blank, self._job.ledger, self._mark())
        try:
            write_whole(Path(config.figures), msgspec.json.encode(figures))
        except OSError as error:
            log.warning("what was measured cannot be written: %s", error)

    def _mark(self) -> Mark:
        return Mark(self._job.clock(), self._job.samples, self._job.version)


class Showing(Protocol):
    """Whose policy has something to show; see `Coordinator`."""

    @property
    def figures(self) -> dict[str, float]: ...


def policy_figures(coordinator: Showing) -> dict[str, float]:
    """What the policy has to show of itself at the end."""
    try:
        return coordinator.figures
    except PolicyError as error:
        log.error("%s", error)  # noqa: TRY400 (one line for the user)
        return {}


class TraceFiles:
    """A trace of each phase. What cannot be written is said once, and from then on nothing is traced.

    Args:
        folder: of the files; None for none.
        job: id of the job.
        tell: is given the line.
        goes_on: whether files of this job are those of this run.
    """

    def __init__(self, folder: str | None, job: str, tell: Callable[[str], None], goes_on: bool = False) -> None:
        self._folder, self._job, self._tell, self._goes_on = folder, job, tell, goes_on
        self._stream: TextIO | None = None
        self._writer: TraceWriter | None = None

    def mend(self, number: int) -> None:
        """A coordinator was killed while it wrote the trace of this phase: cut off what is half a line."""
        self._goes_on = True
        path = Path(self._folder or "") / phase_file(self._job, number)
        try:
            if self._folder is not None and path.exists():
                whole = path.read_bytes().rfind(b"\n") + 1
                os.truncate(path, whole) if whole else path.unlink()
        except OSError as error:
            self._give_up(error)

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster, state: str = "") -> None:
        self.close()
        if self._folder is None:
            return
        folder = Path(self._folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._set_aside_earlier(folder)
            self._stream = open(folder / phase_file(self._job, number), "w", encoding="utf-8")  # noqa: SIM115
            about = {"job": self._job, **({"state": state} if state else {})}
            self._writer = TraceWriter(self._stream, Header(policy.recorded, cluster, about))
        except OSError as error:
            self._give_up(error)

    def _set_aside_earlier(self, folder: Path) -> None:
        if not self._goes_on and (aside := set_aside(folder, self._job)):
            self._tell(f"traces of an earlier run of job {self._job} were moved to {aside}")
        self._goes_on = True

    def remark(self, text: str) -> None:
        if self._writer is not None:
            self._writer.remark(text)

    def write(self, event: Event, decisions: Decisions) -> None:
        if self._writer is None:
            return
        try:
            self._writer.write(event, decisions)
        except OSError as error:
            self._give_up(error)

    def close(self) -> None:
        stream, self._stream, self._writer = self._stream, None, None
        if stream is None:
            return
        try:
            stream.close()  # which writes what it has kept
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        stream, self._stream, self._writer = self._stream, None, None
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()
        self._tell(f"the trace in {self._folder} cannot be written: {error.strerror}; the job goes on without it")
        self._folder = None


def phase_file(name: str, number: int) -> str:
    """What the trace of a phase is called; `phase_of` reads it."""
    return f"{name}-phase-{number}.jsonl"


def phase_of(path: Path, names: str = ".+") -> int:
    """Number of the phase that a file has the trace of, from 1 on; 0 if it has none, or another name.

    Args:
        path: the file.
        names: pattern of those that count.

    >>> phase_of(Path("traces") / phase_file("mine", 3)), phase_of(Path("mine.jsonl"))
    (3, 0)
    >>> phase_of(Path(phase_file("mine", 3)), "yours")
    0
    """
    found = re.fullmatch(rf"{names}-phase-(\d+)\.jsonl", path.name)
    return int(found[1]) if found else 0


def set_aside(folder: Path, job: str) -> Path | None:
    """Move what an earlier run of this job has traced to a folder of its own; that folder, if there was something.

    The earlier run may have had more phases, or more trainings; a reader would take them for phases of this one.
    """
    names = rf"{re.escape(job)}(?:-training-\d+)?"
    earlier = [path for path in folder.iterdir() if phase_of(path, names) and path.is_file()]
    if not earlier:
        return None
    asides = (folder / f"{job}-earlier-{number}" for number in count(1))
    aside = next(path for path in asides if not path.exists())
    aside.mkdir()
    for path in earlier:
        path.rename(aside / path.name)
    return aside
