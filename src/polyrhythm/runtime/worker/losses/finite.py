"""Losses whose values nobody needs are only looked at for one that is not finite."""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

MOST_COPIES = 64
"""Losses on their way from a GPU; of one that is further behind the oldest are not looked at."""


class OnItsWay(NamedTuple):
    """A loss that a GPU copies to this processor's memory."""

    step: int
    loss: Tensor
    copied: torch.cuda.Event


class FiniteWatch:
    """Notices a loss that is not finite, and waits for no GPU: of one there it says so some steps later.

    Example:
        >>> watch = FiniteWatch()
        >>> watch.see([torch.tensor(1.0)], step=1), watch.see([torch.tensor(float("inf"))], step=2)
        (None, (2, inf))

    Attributes:
        latest: the latest loss that is known; None before the first.
    """

    def __init__(self) -> None:
        self.latest: float | None = None
        self._in_flight: deque[OnItsWay] = deque(maxlen=MOST_COPIES)

    def see(self, losses: Sequence[Tensor | float], step: int) -> tuple[int, float] | None:
        """Of the losses that are known by now, the step and the value of one that is not finite."""
        for loss in losses:
            if isinstance(loss, Tensor) and loss.is_cuda:
                self._fetch(loss, step)
                continue
            self.latest = float(loss)
            if not math.isfinite(self.latest):
                return step, self.latest
        return self._arrived() if self._in_flight else None

    def _fetch(self, loss: Tensor, step: int) -> None:
        copy, copied = loss.to("cpu", non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(loss.device))
        self._in_flight.append(OnItsWay(step, copy, copied))

    def _arrived(self) -> tuple[int, float] | None:
        while self._in_flight and self._in_flight[0].copied.query():  # type: ignore[no-untyped-call]
            step, loss, _ = self._in_flight.popleft()
            self.latest = loss.item()
            if not math.isfinite(self.latest):
                return step, self.latest
        return None
