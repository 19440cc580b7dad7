"""Parameter-server mode, a worker's side: it pushes them, and the servers make the steps.

Also what it has in common with workers that step on replicas: the coordinator grants every step.
"""

from collections import deque
from typing import ClassVar

import torch
from torch import Tensor, nn

from polyrhythm.core import Settings, Traits
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import CoordinatorLostError, UsageError
from polyrhythm.lines import first_to_say, say
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.wire.protocol import Cancelled, Go, Over, Pushed, Ready, Skipped, ToWorker
from polyrhythm.runtime.worker.context import DrawnBatch, WorkerContext
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.optimizer import is_stateless
from polyrhythm.training.signals import sizes_of

WITHOUT = Traits()
VOID = -1
"""A generation, or number of a step, that never is."""

FIRST_LOOKS, LOOK_EVERY = 3, 251
"""Steps of a phase in which it is looked whether the script writes into parameters: the first, then one in so many.

A prime, so that a script that writes in every fifth or sixth step is seen, too.
"""

WRITTEN = (
    "the script changes parameters by itself, such as to clip or load them, but those of the job are on servers, which "
    "do not see it; do it before the session, or use a policy on workers, such as bsp or local"
)


BEGUN = (
    "{}, which trains later than others, begins its momentum with 1 - dampening of its first gradient: servers do not "
    "tell that from later ones; without dampening, or under a policy on workers, such as bsp or local, it is all of it"
)


MOVED = (
    "{} has no gradient in a step, which to servers is one of zero: weight decay and momentum go on moving it; freeze "
    "it (requires_grad=False), or use a policy on workers, such as local"
)

CARRYING = ("momentum", "betas")
"""Options of optimizers that carry gradients on into later steps."""


class LateBeginning:
    """Says which parameter has its first gradient after a step of others, where that makes a difference on servers.

    Args:
        replica: the worker's.
    """

    def __init__(self, replica: ScriptReplica) -> None:
        self._replica, self._watches = replica, replica.damps
        begun = with_state(replica)
        self._late = {*replica.parameters} - begun if begun else None

    def look(self) -> None:
        """At the gradients of a step."""
        if not self._watches:
            return
        without = {p for p in self._replica.parameters if p.grad is None}
        late = (without if self._late is None else self._late) - without
        self._late = without if self._late is None else self._late & without
        name = next((name for name, p in self._replica.names.items() if p in late), "")
        if name:
            self._watches = False
            if first_to_say(BEGUN):
                say(BEGUN.format(name))


class MissingGradients:
    """Says which parameter servers move in a step that has no gradient for it: torch's optimizers leave it as it is.

    Args:
        replica: the worker's.
    """

    def __init__(self, replica: ScriptReplica) -> None:
        self._replica = replica
        self._decayed, self._carried = replica.of_groups_with("weight_decay"), replica.of_groups_with(*CARRYING)
        self._begun = with_state(replica)
        self._watches = bool(self._decayed | self._carried)

    def look(self) -> None:
        """At the gradients of a step; one that has none at all is not made."""
        if not self._watches:
            return
        every = self._replica.parameters
        without = {p for p in every if p.grad is None}
        moved = without & (self._decayed | (self._carried & self._begun)) if len(without) < len(every) else set()
        if len(self._begun) < len(every):
            self._begun |= {*every} - without
        if moved:
            self._watches = False
            name = next(name for name, p in self._replica.names.items() if p in moved)
            if first_to_say(MOVED):
                say(MOVED.format(name))


def with_state(replica: ScriptReplica) -> set[nn.Parameter]:
    """Parameters of which the optimizer remembers a step."""
    return {p for p in replica.parameters if not is_stateless(replica.optimizer.state.get(p, {}))}


class Granted:
    """Every step needs a `Go`, which also grants what the worker may draw.

    Args:
        context: the worker's.
        cancels: whether the policy cancels steps.
    """

    together: ClassVar[bool] = False
    on_servers: ClassVar[bool] = False

    def __init__(self, context: WorkerContext, cancels: bool = False) -> None:
        self._context, self._cancels = context, cancels
        self._go: Go | None = None
        self._sample_ranges: deque[SampleRange] = deque()
        self._drawn: deque[DrawnBatch] = deque()
        """What the loader has drawn for steps that are not over."""

    @property
    def left(self) -> tuple[SampleRange, ...] | None:
        """Only the coordinator knows."""
        return None

    def draw(self) -> DrawnBatch | None:
        if not self._sample_ranges:
            return None
        sample_range = self._sample_ranges.popleft()
        drawn = DrawnBatch((sample_range,), sample_range.start, 1, largest=sample_range.stop - sample_range.start)
        self._drawn.append(drawn)
        return drawn

    def drop_drawn(self) -> None:
        self._go = None
        self._sample_ranges.clear()
        self._drawn.clear()

    def share_steps(self, ready: Ready | None) -> None:
        """Servers have had every step, and a replica takes part in exchanges for as long as the epoch lasts."""

    def follow(self, message: ToWorker) -> None:
        match message:
            case Go():
                if message.settings is not None:
                    self._context.steering.settings = Settings(**message.settings)  # type: ignore[arg-type]
                self._sample_ranges.extend(message.sample_ranges)
                if self._cancels and self._is_cancelled(message):
                    self._leave_out()
                    return
                self._start_step(message)
                self._go, self._context.may_step = message, True
            case Cancelled(number=number) if self._go is not None and self._go.number == number:
                self._go = None
            case Over():
                self._context.over = True

    def standing(self) -> Returned:
        """Where the servers make the steps, they have all that counts."""
        return Returned()

    def skip_step(self, samples: int) -> None:
        """Say so, and wait for the next `Go`; of a cancelled step the coordinator knows."""
        if self._go is not None:
            self._context.client.send(Skipped(self._go.number, samples))
            self._take_go()
            self._context.wait()

    def _take_go(self) -> Go | None:
        """The step is over, and its mini-batch with it."""
        go, self._go = self._go, None
        if self._drawn:
            self._drawn.popleft()
        return go

    def _is_cancelled(self, go: Go) -> bool:
        """Whether a step is over before it has begun, as for a worker that the others have left behind."""
        context = self._context
        message = None if context.pending else context.client.poll()
        if message is None or (isinstance(message, Cancelled) and message.number == go.number):
            return message is not None
        context.pending.append(message)
        return False

    def _leave_out(self) -> None:
        """The mini-batch of a step that is not made is void, whether the loader has it already or not."""
        if self._drawn:
            self._drawn.popleft().generation = VOID
        elif self._sample_ranges:
            self._sample_ranges.popleft()

    def _start_step(self, go: Go) -> None:
        pass


class ParameterServerMode(Granted):
    """Every step starts from the servers' parameters and ends in a push.

    Args:
        context: the worker's.
        traits: of the policy. If it reads early, the parameters of the next step come while the gradients of this one
            go. They are without them, and the coordinator is told which version they are.
    """

    on_servers: ClassVar[bool] = True

    def __init__(self, context: WorkerContext, traits: Traits = WITHOUT) -> None:
        super().__init__(context, traits.cancels)
        self._swaps = traits.reads_early and context.client.full_duplex
        self._swapped: int | None = None
        self._pulled_s = 0.0
        self._sent = VOID, 0
        """Number and samples of the step whose gradient was sent last."""
        self._read = 0
        self._looks: tuple[LateBeginning | MissingGradients, ...] = ()
        self._sizes: tuple[int, Tensor] | None = None
        """Of the parameters, as they were taken over for the step under way, if it is looked at."""

    def follow(self, message: ToWorker) -> None:
        if isinstance(message, Cancelled) and message.number == self._sent[0]:
            self._context.tally.drop(self._sent[1])
        super().follow(message)

    def before_step(self, samples: int) -> None:
        """Send the gradients, unless the step was cancelled meanwhile, and keep the script's optimizer from them.

        Raises:
            UsageError: if the script has written into parameters since they were read.
        """
        if self._is_written():
            raise UsageError(WRITTEN)
        replica = self._context.replica
        self._looks = self._looks or (LateBeginning(replica), MissingGradients(replica))
        for each in self._looks:
            each.look()
        self._push(samples)
        self._context.replica.hide_gradients()

    def after_step(self, samples: int) -> None:
        self._context.wait()

    def end_epoch(self, version: int) -> None:
        context = self._context
        self._swapped = None
        if version > context.version:
            context.client.pull(version)
            context.version = version

    def _push(self, samples: int) -> None:
        context = self._context
        while self._go is not None and (message := self._heard()) is not None:
            context.follow(message)
        go = self._take_go()
        if go is None:  # cancelled; the Go after it waits until the step is over
            context.void = True
            return
        start, buffer = context.clock(), None
        try:
            if self._swaps:
                self._swapped = context.client.swap(go.number)
            else:
                buffer = context.client.push(go.number)
        except CoordinatorLostError:  # as soon as the worker waits it meets the next one
            context.void = True
            return
        transfer_s = self._pulled_s + context.clock() - start
        self._sent = go.number, samples
        settings, read = context.replica.settings(), context.version if self._swaps else None
        times = context.computed_s, transfer_s, context.loss
        context.client.send(Pushed(go.number, samples, *times, settings=settings, read=read, buffer=buffer))

    def _heard(self) -> ToWorker | None:
        pending = self._context.pending
        return pending.popleft() if pending else self._context.client.poll()

    def _start_step(self, go: Go) -> None:
        context = self._context
        start = context.clock()
        if self._swapped is not None:
            context.client.take_swapped()
            context.version, self._swapped = self._swapped, None
        elif go.version > context.version:
            context.client.pull(go.version)
            context.version = go.version
        self._pulled_s = context.clock() - start
        context.tally.transferred_s += self._pulled_s
        self._read += 1
        looks = self._read <= FIRST_LOOKS or self._read % LOOK_EVERY == 0
        self._sizes = (context.replica.taken_over, sizes_of(context.replica.parameters)) if looks else None

    def _is_written(self) -> bool:
        """Whether parameters have changed and were not taken over again, as they are where a script asks for state."""
        looked, self._sizes, replica = self._sizes, None, self._context.replica
        if looked is None or looked[0] != replica.taken_over:
            return False
        return not torch.equal(looked[1], sizes_of(replica.parameters))
