"""What the coordinator asks of a phase, whatever its kind, and what a phase takes from the workers.

A kind takes the messages that its workers send and refuses all others. What it says of itself it declares: the
coordinator asks, and never looks which kind it has.
"""

import math
from collections.abc import Callable
from typing import Any, ClassVar, Protocol

from polyrhythm.core import Cluster, Decisions, Driver, Effects, Event, Left, LeftReason, Policy, Stage
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import PolicyError, UsageError, may_raise
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member, Offers, Ranks
from polyrhythm.runtime.wire.protocol import (
    CollectiveFailed,
    Halted,
    LocalStepDone,
    Pushed,
    Skipped,
    Stepped,
    ToCoordinator,
    TookPart,
)


class PhaseDriver(Driver):
    """Runs the policy of a phase until it fails. If another can take its place, what happens then is only booked.

    Args:
        policy: what is run.
        cluster: what it is told of the cluster.
        phase: carries out what is decided, and takes back what was decided in part.
        job: whose phase it is.
    """

    def __init__(self, policy: Policy[Any], cluster: Cluster, phase: "FallibleEffects", job: Job) -> None:
        record = job.effects.record if job.observe is None else self._show
        super().__init__(policy, cluster, phase, job.ledger, record, failed=self.give_up)
        self._phase, self._job = phase, job
        self.rested: Any = None
        """The policy's state when the phase is over: as if all workers had left one by one; None if it has failed."""

    def settle(self) -> None:
        self.rested = self.rest()
        super().settle()

    def rest(self) -> Any:
        """The policy's state as it would be then."""
        state, now_s = self.state, self._job.clock()
        try:
            for worker, account in self.ledger.accounts.items():
                clock = account.clock - self.untold[worker]
                state, _ = self.policy.decide(state, Left(worker, now_s, clock, "finished"))
        except may_raise():  # of a policy that may be none of ours: it begins anew
            return None
        return None if self.silent else state

    def _show(self, event: Event, decisions: Decisions) -> None:
        if self._job.observe is not None:
            self._job.observe(self.policy, event, decisions)
        self._job.effects.record(event, decisions)

    def give_up(self, error: PolicyError) -> None:
        self.silent = True
        self._phase.take_back_decisions()
        self._job.policy_failed(error)


class FallibleEffects(Effects, Protocol):
    def take_back_decisions(self) -> None:
        """The policy has failed, perhaps when some of what it has decided was booked and not yet carried out."""


class PhaseKind:
    """No phase: what holds before the first, and while the state has to be uploaded once more.

    Args:
        number: of the phase, for messages.

    Attributes:
        end_samples: samples of the job after which another phase is due.
        drops: whether steps in flight are cancelled there.
        stops_by_itself: whether it stops there without a request.
        watched: whether it may have to end for another policy at any step.
        goes_on: whether the worker that told of a step is in its next one, and nothing has to be looked after.
    """

    runs: ClassVar[bool] = False
    """Whether there is a phase at all."""
    on_workers: ClassVar[bool] = False
    """Whether the workers hold the newest parameters, so that the loss of a member ends the phase."""
    admits: ClassVar[bool] = False
    """Whether newcomers join in the middle."""
    together: ClassVar[bool] = False
    """Whether all members make each step together, so that one needs a sample for every member."""

    _driver: PhaseDriver
    """Of one that runs."""

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.end_samples, self.drops = math.inf, False
        self.stops_by_itself = self.watched = self.goes_on = False
        self.hears: dict[type, Callable[[int, Any], None]] = {
            Pushed: self.pushed,
            Stepped: self.stepped,
            LocalStepDone: self.moved,
            Skipped: self.skipped,
            Halted: self.halted,
        }
        """What is done about each message in which a worker tells of a step."""

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

    def halted(self, worker: int, message: Halted) -> None:
        """A worker that went on without an answer stands."""
        self._refuse(worker, message)

    def skipped(self, worker: int, message: Skipped) -> None:
        """A step that was granted has come to nothing."""
        self._refuse(worker, message)

    def collective_failed(self, worker: int, message: CollectiveFailed) -> None:
        """An exchange has failed for a member, which stands still; only where they hold the parameters."""

    def refusal(self, worker: int, message: ToCoordinator) -> str:
        """Why a worker cannot have sent this in this phase; empty if it can."""
        return ""

    def _refuse(self, worker: int, message: object) -> None:
        raise UsageError(f"rank {worker} sent {type(message).__name__} in phase {self.number}")

    # -- what happens to it ----------------------------------------------------------------------------------------

    def serve(self, stage: Stage, observed: bool) -> None:
        """Run for this stage of the job's policy; `observed` says that the policy may want another at any step."""
        self.end_samples, self.drops = stage.end_samples, stage.drops
        self.watched = observed or stage.end_samples < math.inf

    def start(self) -> None:
        """Let all workers that stand in the epoch step through what is left of it."""

    def join(self, worker: int) -> None:
        raise AssertionError(f"rank {worker} cannot join phase {self.number} in the middle")

    def lost(self, worker: int, member: Member, reason: LeftReason) -> None:
        """A worker is gone."""

    def book_only(self) -> None:
        """The policy is shown nothing: the coordinator that has shown it what happens in this phase has died."""
        self._driver.silent = True

    def returned(self, worker: int, message: Returned) -> None:
        """A worker tells how far it has come, which a coordinator that has died has known; it stands."""

    def exhausted(self, worker: int) -> None:
        """A worker that makes steps of its own has no data left for the one that it was granted."""

    def alarm(self) -> None:
        pass

    def refuse_deadlock(self) -> None:
        """Nothing more is done about what has just happened: refuse a policy under which nobody would ever go on."""

    def request_stop(self) -> None:
        """Bring everyone to a stop between two steps."""

    def take_back(self, early: Ranks) -> None:
        """Every script is gone or has left its loop early: what those have done counts all the same."""

    def finish(self) -> None:
        pass

    @property
    def rested(self) -> Any:
        """The policy's state after the phase, all workers having left; None if there is none."""
        return self._driver.rested if self.runs else None

    @property
    def resting(self) -> Any:
        """The same between two epochs, when they have all left."""
        return self._driver.rest() if self.runs else None

    def lead(self, state: Any) -> None:
        """Begin with the policy in this state."""
        self._driver.lead(self._driver.policy, state)

    # -- how it is -------------------------------------------------------------------------------------------------

    @property
    def figures(self) -> dict[str, float]:
        return self._driver.figures if self.runs else {}

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

    @property
    def outstanding(self) -> tuple[SampleRange, ...]:
        """Positions that are handed out and, if the servers hold the parameters, in none of these."""
        return ()

    @property
    def unsettled_samples(self) -> int:
        """Samples of these that are processed, by one worker only."""
        return 0

    @property
    def offers(self) -> Offers:
        """Of workers that step by themselves."""
        return {}

    # -- what of the state is where, if the members hold it --------------------------------------------------------

    @property
    def live(self) -> tuple[int, ...]:
        return ()

    @property
    def sound(self) -> tuple[int, ...]:
        return ()

    @property
    def newest(self) -> tuple[int, ...]:
        """Members of which each has all that counts."""
        return self.sound

    @property
    def apart(self) -> tuple[int, ...]:
        """Live members whose replicas differ, so that the job's state is their mean."""
        return ()

    def unsynchronised(self) -> dict[int, tuple[SampleRange, ...]]:
        """Positions that only the replica of one live member has seen."""
        return {}

    def of_newest(self) -> tuple[SampleRange, ...]:
        """Positions that would be in no parameter if all of `newest` died now."""
        return ()
