"""What the parts of a participant share: where the worker stands, and how it waits for the hub."""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ClassVar, Protocol

from polyrhythm.core.workload import Lease
from polyrhythm.runtime.control import Phase, Poisoned, Record, ToWorker
from polyrhythm.runtime.exchange import Exchange
from polyrhythm.runtime.line import Link, Tally
from polyrhythm.runtime.losses import Losses
from polyrhythm.runtime.replica import Replica
from polyrhythm.runtime.steering import Steering

UNREAD = -1
"""Version of parameters that nobody has read from the servers."""


@dataclass(slots=True)
class Station:
    """One worker in its job.

    Args:
        rank: this worker's.
        link: see `Link`.
        replica: the script's model and optimizer.
        exchange: the model's side of collectives.
        clock: seconds, for durations only.
        follow: do what a message of the hub says.
        steering: what the policy sets for the script's optimizer.

    `pending` are messages to follow before any other. `computed_s` and `exchanged_s` split the step at hand;
    `started_s` is when it began, `loss` is what was heard in it. `void` says that nothing comes of it. `poisoned` says
    that an exchange has failed, so that only a new phase concerns this worker.
    """

    rank: int
    link: Link
    replica: Replica
    exchange: Exchange
    clock: Callable[[], float]
    follow: Callable[[ToWorker], None]
    steering: Steering
    tally: Tally = field(default_factory=Tally)
    losses: Losses = field(default_factory=Losses)
    loss: float | None = None
    phase: Phase | None = None
    version: int = UNREAD
    may_step: bool = False
    over: bool = False
    done: bool = False
    poisoned: bool = False
    void: bool = False
    pending: deque[ToWorker] = field(default_factory=deque)
    started_s: float = 0.0
    computed_s: float = 0.0
    exchanged_s: float = 0.0

    def wait(self) -> None:
        """Follow messages until there is a step to make, or none for now."""
        self.may_step = self.over = False
        start = self.clock()
        while not (self.may_step or self.over or self.done):
            self.follow(self.pending.popleft() if self.pending else self.link.receive())
        self.started_s = self.clock()
        self.tally.waited_s += self.started_s - start

    def poison(
        self, completed: int, detail: str, exchanged: int = 0, shared: bool = False, records: tuple[Record, ...] = ()
    ) -> None:
        """Tell the hub that the phase has failed here, and wait for the next."""
        self.declare_poisoned(completed, detail, exchanged, shared, records)
        self.wait()

    def declare_poisoned(
        self, completed: int, detail: str, exchanged: int = 0, shared: bool = False, records: tuple[Record, ...] = ()
    ) -> None:
        """Tell the hub that the phase has failed here; whoever waits goes on waiting."""
        assert self.phase is not None
        self.poisoned = True
        self.exchange.part()
        self.link.send(Poisoned(self.phase.number, completed, detail, exchanged, shared, records))


class Side(Protocol):
    """How a worker makes its steps under one kind of policy.

    `together` says that all members make each step together, and so can meet in a collective; `on_servers` that the
    servers make the steps, and have the optimizer's state.
    """

    together: ClassVar[bool]
    on_servers: ClassVar[bool]

    def draw(self) -> tuple[Lease, ...] | None:
        """Positions of the next mini-batch that may be fetched; None when there is none for now."""

    def follow(self, message: ToWorker) -> None:
        """Do what the hub says about steps."""

    def before_step(self, samples: int) -> None:
        """The gradients are there; the optimizer has not used them yet."""

    def after_step(self, samples: int) -> None:
        """The optimizer has made its step, or been kept from it."""

    def skip_step(self, samples: int) -> None:
        """The script made no optimizer step."""

    def end_epoch(self, version: int) -> None:
        """Everyone is at the end of the epoch; the parameters of `version` are final."""
