"""What the parts of a worker share: where the worker stands, and how it waits for the coordinator."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, Protocol

from polyrhythm.core import Policy, Settings
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import CoordinatorLostError
from polyrhythm.runtime.checkpoint.returned import JobState, Returned
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.runtime.launch.restarts import tell_status
from polyrhythm.runtime.wire.protocol import AtEnd, CollectiveFailed, Phase, Ready, ToCoordinator, ToWorker
from polyrhythm.runtime.wire.shard_protocol import UNREAD
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.losses.figures import ScriptFigures
from polyrhythm.runtime.worker.losses.heard import Losses
from polyrhythm.runtime.worker.optimizers import StepSettings
from polyrhythm.runtime.worker.replica import ScriptReplica


class JobClient(Protocol):
    """A worker's line to the coordinator and to the parameter servers."""

    reported: ScriptFigures

    objection: Callable[[Policy[Any]], str]
    """Why the script cannot follow a policy, after what it has done so far; empty if it can."""

    def send(self, message: ToCoordinator) -> None: ...

    def hold(self, message: ToCoordinator) -> None:
        """Send to the coordinator in front of the next message, or before waiting for one of its own."""

    def flush(self) -> None: ...

    def receive(self, within_step: bool = False) -> ToWorker:
        """The coordinator's next message; between two steps the wait for it ends if this worker is to leave."""

    def poll(self) -> ToWorker | None: ...

    def is_awaited(self, epoch: int) -> bool:
        """Whether the coordinator has said so after this epoch; all else that it has said stays."""

    def come_back(self, returned: Returned) -> None:
        """Meet the coordinator that takes the place of one that has died, and tell it how far this worker is."""

    def interrupt(self) -> None:
        """From a signal's handler: `receive` raises `SystemExit` where it would wait, now or later."""

    def push(self, number: int) -> int | None:
        """Send the replica's gradients to the servers; the shared buffer that holds them, for `Pushed` to name."""

    @property
    def full_duplex(self) -> bool:
        """Whether parameters may come while gradients go."""

    def swap(self, number: int) -> int:
        """Send the replica's gradients, and fetch parameters meanwhile; their version."""

    def take_swapped(self) -> None: ...

    def pull(self, version: int) -> None: ...

    def upload(self, version: int) -> None:
        """Send the replica's parameters and optimizer state to the servers, and wait until they are in place."""

    def download(self, version: int) -> int: ...

    def ask_state(self, version: int | None = None) -> JobState:
        """How the job is, perhaps with the servers' state of that moment."""

    def meet(self, exchange: DDPExchange, members: tuple[int, ...], phase: int, gathers: bool = False) -> None:
        """Form the group of a phase with these members at the job's meeting point; whether they will `gather`."""


@dataclass(slots=True)
class DrawnBatch:
    """What the loader has drawn for one step: its positions, and the phase in which they were granted.

    The job had dealt out `before` samples of the epoch when the step began. So many `workers` make it together, and
    nobody of them has more than `largest` samples if shares are equal. `weight` is what its gradient counts for where
    they are not.
    """

    sample_ranges: tuple[SampleRange, ...]
    before: int
    workers: int
    largest: int
    generation: int = 0
    weight: float | None = None

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

    def drop(self, samples: int) -> None:
        """Nothing comes of a step that was counted."""
        self.steps -= 1
        self.samples -= samples
        self.dropped_steps += 1


@dataclass(slots=True)
class WorkerContext:
    """One worker in its job.

    Args:
        rank: this worker's.
        client: see `JobClient`.
        replica: the script's model and optimizer.
        exchange: the model's side of collectives.
        clock: seconds, for durations only.
        follow: do what a message of the coordinator says.
        come_back: stand, and meet the coordinator that takes the place of one that has died; raises the error if there
            is none.
        steering: what the policy sets for the script's optimizer.
        anyone: whether a process of this worker says so.

    `pending` are messages to follow before any other. `computed_s` and `exchanged_s` split the step at hand;
    `started_s` is when it began, `loss` is what was heard in it. `void` says that nothing comes of it.
    `collective_failed` says that an exchange has failed, so that only a new phase concerns this worker. `leaving` says
    that this worker was asked to end, `stays` that others may be in an exchange with it, so that it first steps on.
    `told_statistics` says that it was said what unequal mini-batches mean for batch norm. Mini-batches that were drawn
    in another `generation` are void.
    """

    rank: int
    client: JobClient
    replica: ScriptReplica
    exchange: DDPExchange
    clock: Callable[[], float]
    follow: Callable[[ToWorker], None]
    come_back: Callable[[CoordinatorLostError], None]
    steering: StepSettings
    anyone: Callable[[bool], bool] = bool
    tally: Tally = field(default_factory=Tally)
    losses: Losses = field(default_factory=Losses)
    loss: float | None = None
    phase: Phase | None = None
    version: int = UNREAD
    may_step: bool = False
    over: bool = False
    done: bool = False
    collective_failed: bool = False
    leaving: bool = False
    void: bool = False
    generation: int = 0
    pending: deque[ToWorker] = field(default_factory=deque)
    started_s: float = 0.0
    computed_s: float = 0.0
    exchanged_s: float = 0.0
    told_statistics: bool = False
    stays: bool = False
    _stop_asked_in: Phase | None = None

    def enter(self, phase: Phase, together: bool) -> None:
        """Nothing of the phase before holds any more."""
        self.phase, self.stays, self.collective_failed = phase, self.stays and together, False
        self.generation += 1
        self.steering.settings = Settings()

    def wait(self) -> None:
        self.may_step = self.over = False
        start = self.clock()
        while not (self.may_step or self.over or self.done):
            if not (stays := self.stays and not self.collective_failed):
                self.leave_if_asked()
            try:
                self.follow(self.pending.popleft() if self.pending else self.client.receive(stays))
            except CoordinatorLostError as error:
                self.come_back(error)
        self.started_s = self.clock()
        self.tally.waited_s += self.started_s - start
        if not self.may_step:
            self.leave_if_asked()

    def tell_end(self, epoch: int, **how: Any) -> None:
        """Tell the coordinator how this worker has come to the end of its loop; see `AtEnd`."""
        self.replica.check_trained()
        self.stays &= not how.get("early")
        self.client.send(AtEnd(epoch, self.phase.number if self.phase else 0, **how))

    def begin_epoch(self) -> None:
        """The script comes to an epoch, with what it has trained until now."""
        self.stays = False
        self.leave_if_asked()
        self.replica.check_trained()

    def leave_if_asked(self) -> None:
        """Where no other worker needs this one; raises `SystemExit`."""
        if self.anyone(self.leaving):
            raise SystemExit(tell_status(LEFT))

    def leave_after_step(self, epoch: int) -> None:
        """The same between two steps. If all make the next one together they stop first, and this worker is let go.

        Whoever went at once would leave the others in an exchange that fails.
        """
        if not self.stays:
            self.leave_if_asked()
        elif self.anyone(self.leaving) and self.may_step and self.phase is not self._stop_asked_in:
            self._stop_asked_in = self.phase
            self.tell_end(epoch, stops=True)

    def refuses(self, policy: Policy[Any]) -> bool:
        """Whether the script cannot follow the policy of a phase that begins; then the coordinator is told why."""
        if objection := self.client.objection(policy):
            self.report_failed_collective(0, objection, broken=True)
        return bool(objection)

    def report_failed_collective(
        self,
        completed: int,
        detail: str,
        exchanged: int = 0,
        shared: bool = False,
        records: bytes = b"",
        broken: bool = False,
        skipped: bool = False,
    ) -> None:
        """Tell the coordinator that the phase has failed here; whoever waits goes on waiting."""
        assert self.phase is not None
        self.collective_failed = True
        self.exchange.part()
        told = exchanged, shared, records, broken, skipped
        self.client.send(CollectiveFailed(self.phase.number, completed, detail, *told))


class StepMode(Protocol):
    """How a worker makes its steps under one kind of policy.

    `together` says that all members make each step together, and so can meet in a collective; `on_servers` that the
    servers make the steps, and have the optimizer's state. `weight` is that of the mini-batch drawn last.
    """

    together: ClassVar[bool]
    on_servers: ClassVar[bool]

    def draw(self) -> DrawnBatch | None:
        """The next mini-batch that may be fetched; None when there is none for now."""

    def drop_drawn(self) -> None:
        """The script has left its loop: what was granted and drawn for its next steps is for others."""

    def follow(self, message: ToWorker) -> None: ...

    @property
    def left(self) -> tuple[SampleRange, ...] | None:
        """What of the epoch is in nobody's parameters; None if that is not known here, or replicas differ."""

    def standing(self) -> Returned:
        """How far it has come in this phase, for a coordinator that takes the place of one that has died."""

    def before_step(self, samples: int) -> None:
        """The gradients are there; the optimizer has not used them yet."""

    def after_step(self, samples: int) -> None:
        """The optimizer has made its step, or been kept from it."""

    def skip_step(self, samples: int) -> None:
        """The script made no optimizer step."""

    def share_steps(self, ready: Ready | None) -> None:
        """The script has no more data. If only it could read them, what only this replica has seen goes to all."""

    def end_epoch(self, version: int) -> None:
        """Everyone is at the end of the epoch; the parameters of `version` are final."""
