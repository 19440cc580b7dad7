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
        ahead_s: since when it computes on without an answer to its report; None if it waits for one.
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
    ahead_s: float | None = None
    finished: bool = False

    @property
    def may_start(self) -> bool:
        """Whether it has all results that its next step needs; `started` counts that step."""
        if self.averaging is not None or not self.transfers:
            return self.averaging is None
        return all(self.started <= transfer.due for transfer in self.transfers)

    def begin(self, phase: WorkerActivity, now_s: float) -> None:
        self.phase, self.since_s = phase, now_s

    def end_transfer(self, now_s: float) -> None:
        self.transfer_s += now_s - self.since_s
        self.phase = "wait"

    def slow_now(self, now_s: float) -> Iterator[Slow]:
        return (slow for slow in self.slow if slow.holds(now_s, self.started - 1))


@dataclass(slots=True, eq=False)
class Transfer:
    """A worker's part in an exchange that travels while the worker goes on; it sends and receives like a worker state.

    Args:
        worker_state: of the worker.
        due: steps that the worker may have started before it needs the result.
        averaging: the exchange, until the worker has its result.
        serial, flow: as those of a worker state.
    """

    worker_state: WorkerState
    due: int
    averaging: "Average | None" = None
    serial: int = 0
    flow: Flow[Any] | None = None

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

    @property
    def phase(self) -> WorkerActivity:
        """A transfer takes none of the worker's time."""
        return "wait"

    def begin(self, phase: WorkerActivity, now_s: float) -> None:
        """It takes none of the worker's time."""

    def end_transfer(self, now_s: float) -> None:
        pass

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
    """

    carriers: list[Carrier]
    missing: set[int]
    adopters: set[int]
    share: float
    serial: int = 0
