"""What the simulator knows of one live worker."""

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from polyrhythm.core.workload import Lease
from polyrhythm.sim.faults import Slow
from polyrhythm.sim.links import Flow

Phase: TypeAlias = Literal["wait", "compute", "transfer"]


@dataclass(slots=True, eq=False)
class Seat:
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
        lease: mini-batch of the step that it was released for.
        flow: its message on a shared link.
        gradients, local: mini-batches whose gradients await a `Sync`; whose steps only its replica has.
        averaging: the `Sync` whose result it does not have yet.
        released: a step waits for that result.
        finished: there was no mini-batch left for it.
    """

    worker: int
    durations: Iterator[float]
    bandwidth: float
    slow: tuple[Slow, ...]
    batch_size: int
    serial: int = 0
    started: int = 0
    phase: Phase = "wait"
    since_s: float = 0.0
    compute_s: float = 0.0
    transfer_s: float = 0.0
    version: int = 0
    through_server: bool = True
    lease: Lease | None = None
    flow: Flow[Any] | None = None
    gradients: deque[Lease] = field(default_factory=deque)
    local: list[Lease] = field(default_factory=list)
    averaging: "Average | None" = None
    released: bool = False
    finished: bool = False

    def begin(self, phase: Phase, now_s: float) -> None:
        """What it does from now on."""
        self.phase, self.since_s = phase, now_s

    def end_transfer(self, now_s: float) -> None:
        """Its message has arrived."""
        self.transfer_s += now_s - self.since_s
        self.phase = "wait"

    def slow_now(self, now_s: float) -> Iterator[Slow]:
        """Slow times that hold now for the present step."""
        return (slow for slow in self.slow if slow.holds(now_s, self.started - 1))


@dataclass(slots=True, eq=False)
class Average:
    """A `Sync` on its way; `missing` are those whose parts the servers still await before anyone pulls."""

    seats: list[Seat]
    missing: set[int]
    serial: int = 0
