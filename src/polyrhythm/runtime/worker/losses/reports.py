"""What the coordinator is told of this worker's losses."""

import math

from polyrhythm.runtime.wire.protocol import Diverged, NonFiniteLoss, Phase
from polyrhythm.runtime.worker.context import WorkerContext
from polyrhythm.runtime.worker.losses.finite import FiniteWatch
from polyrhythm.runtime.worker.losses.guard import Guard

SHOWN_S = 0.25
"""Seconds between two losses that the coordinator is told of only to show them."""


class LossReports:
    """Hears the losses of each step, and tells the coordinator what is wrong with them.

    Args:
        context: of the worker.
        guard: watches the losses.
    """

    def __init__(self, context: WorkerContext, guard: Guard) -> None:
        self._context, self._guard = context, guard
        self._finite = FiniteWatch()
        self._shown_s = -math.inf
        self._reads = False
        self._has_warned = False

    def begin(self, phase: Phase, needed: bool, means: bool) -> None:
        """A phase begins, whose policy needs the losses or not; with `means`, sums over mini-batches are refused."""
        self._reads = needed or phase.hears or self._guard.listens
        self._context.losses.listen(True, means=means)

    def hear(self, now_s: float) -> float | None:
        """The loss of the step at hand, if somebody needs it."""
        losses, step = self._context.losses, self._context.tally.steps + 1
        if not self._reads:
            if odd := self._finite.see(losses.drain(), step):
                self._warn(*odd)
            return self._shown(now_s) if now_s >= self._shown_s + SHOWN_S else None
        loss = self._context.exchange.common(losses.take())
        if loss is not None and self._guard.listens:
            self._watch(loss)
        elif loss is not None and not math.isfinite(loss):
            self._warn(step, loss)
        return loss

    def _shown(self, now_s: float) -> float | None:
        self._shown_s = now_s
        return self._finite.latest

    def _watch(self, loss: float) -> None:
        """Tell the coordinator if the losses have diverged; until it has decided, everything goes on."""
        context = self._context
        if (why := self._guard.see(loss)) and context.phase:
            context.client.send(Diverged(context.phase.number, why, self._guard.goes_back))

    def _warn(self, step: int, loss: float) -> None:
        """Have it said once that a loss is not finite."""
        if not self._has_warned:
            self._has_warned = True
            self._context.client.send(NonFiniteLoss(step, loss))
