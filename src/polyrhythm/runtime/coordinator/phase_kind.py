"""What the coordinator asks of a phase, whatever its kind, and what a phase takes from the workers.

A kind takes the messages that its workers send and refuses all others. What it says of itself it declares: the
coordinator asks, and never looks which kind it has.
"""

import math
from collections.abc import Sequence
from typing import ClassVar

from polyrhythm.core import LeftReason
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import UsageError
from polyrhythm.runtime.coordinator.job import Member
from polyrhythm.runtime.wire.protocol import CollectiveFailed, LocalStepDone, Pushed, Skipped, Stepped, TookPart


class PhaseKind:
    """No phase: what holds before the first, and while the state has to be uploaded once more.

    Args:
        number: of the phase, for messages.

    Attributes:
        end_samples: samples of the job after which another phase is due.
        drops: whether steps in flight are cancelled there.
        stops_by_itself: whether it stops there without a request.
    """

    runs: ClassVar[bool] = False
    """Whether there is a phase at all."""
    on_workers: ClassVar[bool] = False
    """Whether the workers hold the newest parameters, so that the loss of a member ends the phase."""
    admits: ClassVar[bool] = False
    """Whether newcomers join in the middle."""
    together: ClassVar[bool] = False
    """Whether all members make each step together, so that one needs a sample for every member."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.end_samples, self.drops = math.inf, False
        self.stops_by_itself = False

    # -- what workers send -----------------------------------------------------------------------------------------

    def pushed(self, worker: int, message: Pushed) -> None:
        """A gradient has arrived at the servers."""
        self._refuse(worker, message)

    def stepped(self, worker: int, message: Stepped) -> None:
        """A member has completed a step that all make together."""
        self._refuse(worker, message)

    def moved(self, worker: int, message: LocalStepDone) -> None:
        """A worker has completed a step on its replica."""
        self._refuse(worker, message)

    def merged(self, worker: int, message: TookPart) -> None:
        """A worker has completed an exchange of replicas."""
        self._refuse(worker, message)

    def skipped(self, worker: int, message: Skipped) -> None:
        """A step that was granted has come to nothing."""
        self._refuse(worker, message)

    def agreed(self, worker: int) -> None:
        pass

    def collective_failed(self, worker: int, message: CollectiveFailed) -> None:
        """An exchange has failed for a member, which stands still; only where they hold the parameters."""

    def _refuse(self, worker: int, message: object) -> None:
        raise UsageError(f"rank {worker} sent {type(message).__name__} in phase {self.number}")

    # -- what happens to it ----------------------------------------------------------------------------------------

    def start(self) -> None:
        """Let all workers that stand in the epoch step through what is left of it."""

    def join(self, worker: int) -> None:
        raise AssertionError(f"rank {worker} cannot join phase {self.number} in the middle")

    def lost(self, worker: int, member: Member, reason: LeftReason) -> None:
        """A worker is gone."""

    def alarm(self) -> None:
        pass

    def await_agreement(self, members: Sequence[int]) -> None:
        """The members begin with an exchange of their state."""

    def request_stop(self) -> None:
        """Bring everyone to a stop between two steps."""

    def take_back(self) -> None:
        """Every script has left its loop early: what they have done counts all the same."""

    def finish(self) -> None:
        pass

    # -- how it is -------------------------------------------------------------------------------------------------

    @property
    def figures(self) -> dict[str, float]:
        return {}

    @property
    def started(self) -> bool:
        """Whether any step can have been made."""
        return self.runs

    @property
    def standing(self) -> bool:
        return False

    @property
    def left(self) -> int:
        return 0

    def may_end(self) -> bool:
        """Whether the epoch may end, or go on with what was given back, now that everyone stands at its end."""
        return True

    # -- what of the state is where, if the members hold it --------------------------------------------------------

    @property
    def live(self) -> tuple[int, ...]:
        return ()

    @property
    def sound(self) -> tuple[int, ...]:
        return ()

    @property
    def apart(self) -> tuple[int, ...]:
        """Live members whose replicas differ, so that the job's state is their mean."""
        return ()

    def unsynchronised(self) -> dict[int, tuple[SampleRange, ...]]:
        return {}
