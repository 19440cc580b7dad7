"""What a participant of a job needs from its connections, and what it hands to the loader and to its metrics."""

from dataclasses import dataclass
from typing import Protocol

from polyrhythm.core.workload import Lease
from polyrhythm.runtime.control import ToHub, ToWorker
from polyrhythm.runtime.exchange import Exchange
from polyrhythm.runtime.messages import Broken


class Link(Protocol):
    """A worker's line to the hub and to the parameter servers."""

    def send(self, message: ToHub | Broken) -> None:
        """Send to the hub."""

    def hold(self, message: ToHub) -> None:
        """Send to the hub in front of the next message, or before waiting for one of its own."""

    def flush(self) -> None:
        """Send what is held now."""

    def receive(self) -> ToWorker:
        """Wait for the hub's next message."""

    def poll(self) -> ToWorker | None:
        """The hub's next message if it is there."""

    def push(self, number: int) -> None:
        """Send the replica's gradients to the servers; it is over with the next message to the hub."""

    @property
    def full_duplex(self) -> bool:
        """Whether parameters may come while gradients go."""

    def swap(self, number: int) -> int:
        """Send the replica's gradients, and fetch parameters meanwhile; their version."""

    def take_swapped(self) -> None:
        """Give the replica what the last `swap` has fetched."""

    def pull(self, version: int) -> None:
        """Give the replica the servers' parameters, of at least `version`."""

    def upload(self, version: int) -> None:
        """Send the replica's parameters and optimizer state to the servers, and wait until they are in place."""

    def download(self, version: int) -> None:
        """Give the replica the servers' parameters and optimizer state."""

    def meet(self, exchange: Exchange, members: tuple[int, ...], phase: int) -> None:
        """Form the group of a phase with these members at the job's meeting point."""


@dataclass(slots=True)
class Draw:
    """A mini-batch that the loader has drawn: its positions, and the phase in which it was granted."""

    leases: tuple[Lease, ...]
    generation: int

    @property
    def samples(self) -> int:
        """Number of samples."""
        return sum(lease.samples for lease in self.leases)


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
