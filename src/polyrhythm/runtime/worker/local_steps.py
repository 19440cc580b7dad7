"""Local-step mode, a worker's side: it steps by itself and asks the coordinator after every step.

Where the policy lets it, it goes on without the answer for as long as it has mini-batches.
"""

from collections import deque
from dataclasses import replace
from typing import Any

import msgspec

from polyrhythm.core import Cluster, Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import CoordinatorLostError, GroupError
from polyrhythm.runtime.checkpoint.returned import Returned
from polyrhythm.runtime.collectives.model_averaging import ContributionWeight
from polyrhythm.runtime.wire.protocol import (
    Accepted,
    Cancelled,
    Go,
    Halt,
    Halted,
    LocalStepDone,
    Over,
    Phase,
    Skipped,
    TakePart,
    TookPart,
    ToWorker,
)
from polyrhythm.runtime.worker.context import DrawnBatch, StepMode, WorkerContext
from polyrhythm.runtime.worker.parameter_server import Granted
from polyrhythm.runtime.worker.presence.seen import SeenRanges
from polyrhythm.runtime.worker.synchronous import SynchronousMode


class LocalStepMode(Granted):
    """Steps on its own replica; a `TakePart` is an exchange in which all members of the phase take part.

    Where the policy cancels steps, the coordinator is asked before the optimizer has made its step, so that a step that
    was cancelled while the question was under way leaves no trace in the replica.
    """

    def __init__(self, context: WorkerContext, policy: Policy[Any]) -> None:
        super().__init__(context, policy.traits.cancels)
        self._asks_first = policy.traits.cancels
        self._needs_norm = "grad_sq_norm" in policy.traits.needs
        self._steps = 0
        self._merges: deque[tuple[int, int]] = deque()
        self._asked_s: float | None = None
        self._query_s = 0.0
        self._exchange_s = 0.0
        self._transfer_s = 0.0
        self._seen = SeenRanges(context.rank)
        context.exchange.averager.start()

    def draw(self) -> DrawnBatch | None:
        drawn = super().draw()
        if drawn is not None:
            self._seen.draw(drawn.sample_ranges[0])
        return drawn

    def standing(self) -> Returned:
        return self._seen.told

    def drop_drawn(self) -> None:
        super().drop_drawn()
        self._seen.halt()

    def skip_step(self, samples: int) -> None:
        self._seen.step(self._go is not None)
        super().skip_step(samples)

    def before_step(self, samples: int) -> None:
        if self._asks_first and not self._accepted(samples):
            self._context.void = True
            self._context.replica.hide_gradients()

    def after_step(self, samples: int) -> None:
        self._seen.step(not self._context.void)
        if not self._context.void:
            if not self._asks_first:
                self._report(samples)
            self._steps += 1
            self._merge_due()
        self._context.wait()

    def follow(self, message: ToWorker) -> None:
        if isinstance(message, TakePart):
            self._exchange(self._with_all(message))
        else:
            super().follow(message)

    def end_epoch(self, version: int) -> None:
        # The replicas have met and are equal. Neither that nor what comes until the next epoch is part of a step.
        self._context.version = version
        self._context.tally.transferred_s += self._exchange_s
        self._asked_s, self._exchange_s = None, 0.0

    # -- details ---------------------------------------------------------------------------------------------------

    def _report(self, samples: int) -> int:
        context, go = self._context, self._go
        assert go is not None, "a step was granted"
        self._take_go()
        self._asked_s = context.clock()
        norm = context.replica.grad_sq_norm() if self._needs_norm else None
        figures = context.computed_s, self._transfer_s, context.loss, norm
        context.client.send(LocalStepDone(go.number, samples, *figures))
        return go.number

    def _accepted(self, samples: int) -> bool:
        """Report, and wait until it is clear whether the report came before a cancellation."""
        context = self._context
        number = self._report(samples)
        while True:
            try:
                message = context.client.receive()
            except CoordinatorLostError:  # nobody has said that it came in time
                return False
            match message:
                case Accepted(number=found) if found == number:
                    self._query_s = context.clock() - (self._asked_s or 0.0)
                    self._asked_s = None
                    return True
                case Cancelled(number=found) if found == number:
                    return False
                case _:
                    context.pending.append(message)
                    if isinstance(message, Phase):
                        return True

    def _start_step(self, go: Go) -> None:
        """Note what the transfers before this step have taken; with an exchange, the query as it took before."""
        if self._asked_s is not None:
            self._query_s = self._context.clock() - self._asked_s
            self._asked_s = None
        self._transfer_s, self._exchange_s = self._query_s + self._exchange_s, 0.0
        self._context.tally.transferred_s += self._transfer_s

    def _with_all(self, merge: TakePart) -> TakePart:
        if merge.sync.workers:
            return merge
        phase = self._context.phase
        assert phase is not None, "members have entered a phase"
        return TakePart(merge.number, replace(merge.sync, workers=phase.members))

    def _exchange(self, merge: TakePart) -> None:
        context = self._context
        start = context.clock()
        self._merges.append((merge.number, self._steps + merge.sync.delay))
        self._seen.offer(merge)
        try:
            context.exchange.combine(ContributionWeight.of(merge.sync, context.rank), self._steps)
        except GroupError as error:
            context.report_failed_collective(1, str(error))
            return
        self._merge_due()
        self._exchange_s += context.clock() - start
        self._asked_s = None

    def _merge_due(self) -> None:
        context = self._context
        try:
            context.exchange.averager.merge(self._steps)
        except GroupError as error:
            context.report_failed_collective(1, str(error))
            return
        while self._merges and self._merges[0][1] <= self._steps:
            self._seen.merge(self._merges[0][0])
            context.client.send(TookPart(self._merges.popleft()[0]))


class AheadMode(LocalStepMode):
    """Steps on without an answer as long as there are mini-batches; a `Halt` abandons the step in flight."""

    def __init__(self, context: WorkerContext, policy: Policy[Any]) -> None:
        super().__init__(context, policy)
        self._left = self._dropped = 0

    def drop_drawn(self) -> None:
        if self._go is not None:
            self._dropped = self._go.number
        super().drop_drawn()
        self._asked_s, self._left = None, 0

    def before_step(self, samples: int) -> None:
        self._hear()
        if self._go is None:
            self._context.void = True
            self._context.replica.hide_gradients()

    def after_step(self, samples: int) -> None:
        self._seen.step(self._go is not None)
        if self._go is not None:
            go = self._go
            self._report(samples)
            self._steps += 1
            self._merge_due()
            self._next(go)
        self._go_on()

    def skip_step(self, samples: int) -> None:
        self._hear()
        self._seen.step(self._go is not None)
        if self._go is not None:
            self._context.client.send(Skipped(self._go.number, samples))
            self._next(self._go)
        self._go_on()

    def follow(self, message: ToWorker) -> None:
        if isinstance(message, Halt):
            self._halt()
        elif isinstance(message, Go) and self._go is not None:
            self._follow_grant(message, self._go.number)
        else:
            if isinstance(message, Over):
                self._go = None
            super().follow(message)

    # -- details ---------------------------------------------------------------------------------------------------

    def _start_step(self, go: Go) -> None:
        self._left = len(go.sample_ranges)
        super()._start_step(go)

    def _follow_grant(self, go: Go, number: int) -> None:
        """More mini-batches for who is under way, perhaps further than the step that they come with."""
        if not self._left and go.sample_ranges:
            super().follow(msgspec.structs.replace(go, number=number))
            return
        self._sample_ranges.extend(go.sample_ranges)
        self._left += len(go.sample_ranges)

    def _hear(self) -> None:
        """Follow what has come, up to what belongs between two steps and all that comes after it."""
        context = self._context
        while self._go is not None and not context.pending and (message := context.client.poll()) is not None:
            if isinstance(message, Go | Halt) and not context.collective_failed:
                self.follow(message)
            else:
                context.pending.append(message)

    def _next(self, go: Go) -> None:
        self._go = msgspec.structs.replace(go, number=go.number + 1, sample_ranges=())
        self._left -= 1
        if self._left:
            self._asked_s, self._query_s, self._transfer_s = None, 0.0, 0.0

    def _go_on(self) -> None:
        """Start the next step, or wait where there is nothing to make it of."""
        context = self._context
        self._hear()
        if self._go is None or not self._left or context.pending or context.collective_failed:
            context.wait()
        else:
            context.started_s = context.clock()

    def _halt(self) -> None:
        """Stand: what was drawn and not processed is for others; perhaps it was before the word has come."""
        self.drop_drawn()
        self._context.client.send(Halted(self._dropped))
        self._context.generation += 1


def mode_on_workers(context: WorkerContext, policy: Policy[Any], phase: Phase) -> StepMode:
    """How steps are made where the parameters are on the workers."""
    if runtime_placement(policy) == "coordinator":
        return (LocalStepMode if policy.traits.waits else AheadMode)(context, policy)
    counts = phase.batch_size, phase.workload_samples, phase.processed_samples
    cluster = Cluster(len(phase.members), *counts, dataset_samples=phase.dataset_samples)
    return SynchronousMode(context, policy, cluster, phase)
