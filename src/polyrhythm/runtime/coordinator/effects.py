"""What the coordinator does to the world around it."""

from collections.abc import Sequence
from typing import Any, Protocol

from polyrhythm.core import Cluster, Decisions, Event, LeftReason, Policy, Ticket
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot
from polyrhythm.runtime.checkpoint.returned import JobState
from polyrhythm.runtime.wire.protocol import TakePart, ToWorker
from polyrhythm.runtime.wire.shard_protocol import GroupSettings


class CoordinatorEffects(Protocol):
    """What the coordinator needs from the process that it runs in."""

    def send(self, worker: int, message: ToWorker | JobState) -> None: ...

    def send_all(self, workers: Sequence[int], message: TakePart) -> None:
        """Say the same to these workers, in front of what each of them is told next about the event at hand."""

    def apply(
        self, tickets: Sequence[Ticket], weights: Sequence[float], staleness: Sequence[int], settings: GroupSettings
    ) -> None:
        """Make one optimizer step on the servers with the weighted mean of these gradients, under these settings."""

    def drop(self, tickets: Sequence[Ticket]) -> None: ...

    def cut(self, reason: str, after: int = 0) -> None:
        """End the collectives of the current phase on all workers, in synchronous mode those after the first `after`
        steps.

        They will say that they are `CollectiveFailed`.
        """

    def begin_phase(self, number: int, policy: Policy[Any], cluster: Cluster, state: str = "") -> None:
        """A new phase starts, perhaps with the policy in this state; what is recorded from now on belongs to it."""

    def propose(self, number: int, policy: str) -> None:
        """Ask all workers whether they can run this policy."""

    def give_up(self, reason: str) -> None:
        """End the job for everyone, with one line."""

    def tell_loss(self, worker: int, reason: LeftReason) -> None:
        """A member is gone: whoever watches hears of it."""

    def keep(self, snapshot: JobSnapshot) -> None:
        """All stand at a checkpoint, which a worker is writing: keep what belongs to it."""

    def record(self, event: Event, decisions: Decisions) -> None: ...

    def remark(self, text: str) -> None:
        """What a policy remarks about the event that is recorded next."""

    def wake(self, time_s: float) -> None: ...
