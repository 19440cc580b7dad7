"""What a worker of a job needs from its connections, and what it hands to the loader and to its metrics."""

from dataclasses import dataclass
from typing import Protocol

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import ToCoordinator, ToWorker
from polyrhythm.runtime.wire.shard_protocol import Broken
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange


class JobClient(Protocol):
    """A worker's line to the coordinator and to the parameter servers."""

    def send(self, message: ToCoordinator | Broken) -> None: ...

    def hold(self, message: ToCoordinator) -> None:
        """Send to the coordinator in front of the next message, or before waiting for one of its own."""

    def flush(self) -> None: ...

    def receive(self) -> ToWorker: ...

    def poll(self) -> ToWorker | None: ...

    def push(self, number: int) -> None:
        """Send the replica's gradients to the servers; it is over with the next message to the coordinator."""

    @property
    def full_duplex(self) -> bool:
        """Whether parameters may come while gradients go."""

    def swap(self, number: int) -> int:
        """Send the replica's gradients, and fetch parameters meanwhile; their version."""

    def take_swapped(self) -> None: ...

    def pull(self, version: int) -> None: ...

    def upload(self, version: int) -> None:
        """Send the replica's parameters and optimizer state to the servers, and wait until they are in place."""

    def download(self, version: int) -> None: ...

    def meet(self, exchange: DDPExchange, members: tuple[int, ...], phase: int) -> None:
        """Form the group of a phase with these members at the job's meeting point."""


@dataclass(slots=True)
class DrawnBatch:
    """A mini-batch that the loader has drawn: its positions, and the phase in which it was granted."""

    sample_ranges: tuple[SampleRange, ...]
    generation: int

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(sample_range.samples for sample_range in self.sample_ranges)


@dataclass(slots=True)
class Tally:
    """What this worker has done so far; durations are its own. Neither skipped nor dropped steps are in `steps`."""

    steps: int = 0
    samples: int = 0
    skipped_steps: int = 0
    dropped_steps: int = 0
    waited_s: float = 0.0
    computed_s: float = 0.0
    transferred_s: float = 0.0
