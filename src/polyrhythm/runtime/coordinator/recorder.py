"""What a coordinator writes down about its job: a trace of each phase, and what was measured."""

import logging
import time
from pathlib import Path
from typing import Any, TextIO

import msgspec

from polyrhythm.core import Cluster, Decisions, Event, Header, Joined, Left, Policy, Report, TraceWriter
from polyrhythm.core.placement import runtime_placement
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import EpochDone
from polyrhythm.telemetry import Gauge, Mark, RunResult, Stragglers
from polyrhythm.training.compression import parse_compression

log = logging.getLogger(__name__)


class JobRecorder:
    """Writes what the config asks for, and nothing otherwise.

    Args:
        config: of the job; `trace` and `figures` say where to write.
        job: what is recorded.
    """

    def __init__(self, config: JobConfig, job: Job) -> None:
        self._config, self._job = config, job
        self.stragglers = Stragglers(tell=log.warning)
        self._gauge = Gauge(self.stragglers) if config.figures is not None else None
        self._trace: TextIO | None = None
        self._writer: TraceWriter | None = None
        self._idle_until_s = 0.0

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster, message_bytes: int) -> None:
        if number == 1:
            self._idle_until_s = time.process_time()
        if self._gauge is not None:
            push_bytes = message_bytes * parse_compression(self._config.compress).ratio
            star = self._config.averaging == "server"
            self._gauge.begin_phase(runtime_placement(policy) != "servers", message_bytes, push_bytes, star)
        if self._config.trace is None:
            return
        self._close_trace()
        folder = Path(self._config.trace)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self._config.job}-phase-{number}.jsonl"
        self._trace = open(path, "w", encoding="utf-8")  # noqa: SIM115
        self._writer = TraceWriter(self._trace, Header(policy.spec, cluster, {"job": self._config.job}))

    def record(self, event: Event, decisions: Decisions) -> None:
        if self._gauge is not None:
            self._gauge.record(event, decisions)
        else:
            self._follow(event)
        if self._writer is not None:
            self._writer.write(event, decisions)

    def _follow(self, event: Event) -> None:
        # Who is late is known also of a job that is not measured.
        match event:
            case Joined(workers=workers, time_s=time_s):
                for worker in workers:
                    self.stragglers.join(worker, time_s)
            case Report():
                self.stragglers.report(event)
            case Left(worker=worker, reason=reason) if reason != "finished":
                self.stragglers.leave(worker)

    def end_epoch(self, message: EpochDone) -> EpochDone:
        """An epoch is over for everyone; of several calls for one epoch the first counts. Workers hear who is late."""
        if self._gauge is not None and message.epoch == len(self._gauge.marks):
            self._gauge.end_epoch(self._mark())
        return EpochDone(message.epoch, message.version, self.stragglers.arrivals())

    def lost(self, worker: int) -> None:
        """A member of the job is gone; if a policy still sees it, that one's `Left` will tell."""
        if self._gauge is not None and worker not in self._job.ledger.accounts:
            self._gauge.lost(worker, self._job.clock())

    def close(self, policy_figures: dict[str, float]) -> None:
        self._close_trace()
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
        Path(config.figures).write_bytes(msgspec.json.encode(figures))

    def _mark(self) -> Mark:
        return Mark(self._job.clock(), self._job.samples, self._job.version)

    def _close_trace(self) -> None:
        if self._trace is not None:
            self._trace.close()
