"""What the simulator knows of one live worker."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from polyrhythm.core.workload import SampleRange
from polyrhythm.sim.cluster.faults import Slow
from polyrhythm.sim.cluster.links import Flow

WorkerActivity: TypeAlias = Literal["wait", "compute", "transfer"]


@dataclass(slots=True, eq=False)
class WorkerState:
    """One live worker.

    Args:
        durations: of its mini-batches, seconds.
        bandwidth: of its NIC, bytes/s.
        slow: its slow times.
        batch_size: samples of its next mini-batches.
        serial: moves on when its step is abandoned, which voids what was scheduled for it.
        started: steps that it has started.
        phase, since_s: what it does, and from when.
        free_s: until when it computes a step that was cancelled.
        compute_s, transfer_s: of the present step so far.
        version: updates before the present step read the parameters.
        through_server: whether the present step pulls and pushes.
        sample_range: mini-batch of the step that it was released for.
        flow: its message on a shared link.
        gradients, local: mini-batches whose gradients await a `Sync`; whose steps only its replica has.
        averaging: the `Sync` whose result it waits for.
        transfers: its parts in exchanges that travel while it goes on.
        released: a step waits for a result.
        awaits_answer: somebody has to tell it that it may start the step.
        ahead: mini-batches of steps that it has begun without an answer, oldest first; the newest is being computed.
        sent: its reports that travel while it goes on, oldest first.
        part_sent: its part of the next average has come with the word that it has stopped.
        finished: there was no mini-batch left for it.
    """

    worker: int
    durations: Iterator[float]
    bandwidth: float
    slow: tuple[Slow, ...]
    batch_size: int
    serial: int = 0
    started: int = 0
    phase: WorkerActivity = "wait"
    since_s: float = 0.0
    free_s: float = 0.0
    compute_s: float = 0.0
    transfer_s: float = 0.0
    version: int = 0
    through_server: bool = True
    sample_range: SampleRange | None = None
    flow: Flow[Any] | None = None
    gradients: deque[SampleRange] = field(default_factory=deque)
    local: list[SampleRange] = field(default_factory=list)
    averaging: "Average | None" = None
    transfers: "list[Transfer]" = field(default_factory=list)
    released: bool = False
    awaits_answer: bool = False
    ahead: deque[SampleRange] = field(default_factory=deque)
    sent: "deque[SentReport]" = field(default_factory=deque)
    part_sent: bool = False
    finished: bool = False

    def slow_now(self, now_s: float) -> Iterator[Slow]:
        return (slow for slow in self.slow if slow.holds(now_s, self.started - 1))


@dataclass(slots=True, eq=False)
class SentReport:
    """The report of a step whose worker has gone on; void once its worker is gone."""

    worker_state: WorkerState
    compute_s: float
    transfer_s: float
    arrives_s: float = 0.0
    serial: int = 0


@dataclass(slots=True, eq=False)
class Transfer:
    """A worker's part in an exchange that travels while the worker goes on; it sends and receives like a worker state.

    Args:
        worker_state: of the worker.
        due: steps that the worker may have started before it needs the result.
        averaging: the exchange, until the worker has its result.
        serial, flow, phase, since_s: as those of a worker state.
        transfer_s: how long it has taken; none of it is the worker's time.
    """

    worker_state: WorkerState
    due: int
    averaging: "Average | None" = None
    serial: int = 0
    flow: Flow[Any] | None = None
    phase: WorkerActivity = "wait"
    since_s: float = 0.0
    transfer_s: float = 0.0

    @property
    def worker(self) -> int:
        return self.worker_state.worker

    @property
    def bandwidth(self) -> float:
        # As the worker's own; what both send at once does not share it.
        return self.worker_state.bandwidth

    @property
    def slow(self) -> tuple[Slow, ...]:
        return self.worker_state.slow

    def slow_now(self, now_s: float) -> Iterator[Slow]:
        return self.worker_state.slow_now(now_s)


Carrier: TypeAlias = WorkerState | Transfer
"""What sends and receives for a worker."""


@dataclass(slots=True, eq=False)
class Average:
    """A `Sync` on its way.

    Args:
        carriers: of all who contribute or adopt.
        missing: workers whose parts the servers still await before anyone pulls.
        adopters: workers that pull the result.
        share: how much of the parameters it is about.
        hidden_s: how much of a ring has passed before the last of them came to it.
    """

    carriers: list[Carrier]
    missing: set[int]
    adopters: set[int]
    share: float
    hidden_s: float = 0.0
    serial: int = 0
