"""Local-step mode, a worker's side: it steps by itself and asks the coordinator after every
step.
"""

from collections import deque
from typing import Any

from polyrhythm.core import Policy
from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.model_averaging import ContributionWeight
from polyrhythm.runtime.wire.protocol import Accepted, Cancelled, Go, LocalStepDone, Phase, TakePart, TookPart, ToWorker
from polyrhythm.runtime.worker.context import WorkerContext
from polyrhythm.runtime.worker.parameter_server import Granted


class LocalStepMode(Granted):
    """Steps on its own replica; a `TakePart` is an exchange in which all members of the phase take part.

    Where the policy cancels steps, the coordinator is asked before the optimizer has made its step, so that a step that
    was cancelled while the question was under way leaves no trace in the replica.
    """

    def __init__(self, context: WorkerContext, policy: Policy[Any]) -> None:
        super().__init__(context)
        self._asks_first = policy.traits.cancels
        self._needs_norm = "grad_sq_norm" in policy.traits.needs
        self._steps = 0
        self._merges: deque[tuple[int, int]] = deque()
        self._asked_s: float | None = None
        self._query_s = 0.0
        self._exchange_s = 0.0
        self._transfer_s = 0.0
        context.exchange.averager.start()

    def before_step(self, samples: int) -> None:
        if self._asks_first and not self._accepted(samples):
            self._context.void = True
            self._context.replica.hide_gradients()

    def after_step(self, samples: int) -> None:
        if not self._context.void:
            if not self._asks_first:
                self._report(samples)
            self._steps += 1
            self._merge_due()
        self._context.wait()

    def follow(self, message: ToWorker) -> None:
        if isinstance(message, TakePart):
            self._exchange(message)
        else:
            super().follow(message)

    def end_epoch(self, version: int) -> None:
        # The replicas have met and are equal.
        self._context.version = version

    # -- details ---------------------------------------------------------------------------------------------------

    def _report(self, samples: int) -> int:
        context, go = self._context, self._go
        assert go is not None, "a step was granted"
        self._go = None
        self._asked_s = context.clock()
        norm = context.replica.grad_sq_norm() if self._needs_norm else None
        context.client.send(LocalStepDone(go.number, samples, context.computed_s, self._transfer_s, grad_sq_norm=norm))
        return go.number

    def _accepted(self, samples: int) -> bool:
        """Report, and wait until it is clear whether the report came before a cancellation."""
        context = self._context
        number = self._report(samples)
        while True:
            match message := context.client.receive():
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

    def _exchange(self, merge: TakePart) -> None:
        context = self._context
        start = context.clock()
        self._merges.append((merge.number, self._steps + merge.sync.delay))
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
            context.client.send(TookPart(self._merges.popleft()[0]))
