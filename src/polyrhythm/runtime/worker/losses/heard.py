"""Hears the losses of a script, the scalars that it calls ``backward()`` on.

Several passes of one step, as in gradient accumulation, are averaged. Under a GradScaler the value is the scaled one,
which moves only when the scale does.
"""

from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from polyrhythm.errors import UsageError

MOST_HEARD = 1024
"""Losses that are kept until a step takes them: a script may call ``backward()`` for what no step of ours follows."""


REDUCED_TO_SUM = 2
"""What torch's losses keep of ``reduction="sum"``."""

PASSING = ("AddBackward", "MulBackward", "NegBackward", "ToCopyBackward", "AliasBackward", "SqueezeBackward")
"""Operations that leave a sum over samples one."""


def refuse_sum(loss: Tensor) -> None:
    """Refuse a loss that grows with its mini-batch: where mini-batches are unequal, means are weighed by their size.

    A sum that is divided afterwards passes, as nobody can tell by what.

    >>> refuse_sum(torch.ones(2, requires_grad=True).mean())
    """
    pending = [loss.grad_fn]
    alone = True
    for _ in range(NODES):
        node = pending.pop() if pending else None
        if node is None:
            return
        name = node.name()
        if getattr(node, "_saved_reduction", None) == REDUCED_TO_SUM or (alone and name.startswith("SumBackward")):
            raise UsageError(
                "the loss is a sum over its mini-batch, and policies balanced and auto weigh means; "
                'use reduction="mean"'
            )
        if name.startswith(PASSING):
            following = [operand for operand, _ in node.next_functions if operand is not None]
            alone = alone and len(following) < 2
            pending += following


NODES = 16
"""Operations of a loss that are looked at."""


class Losses:
    """The losses since they were last taken.

    Example:
        >>> losses = Losses()
        >>> losses.listen(True)
        >>> for value in (1.0, 3.0):
        ...     torch.tensor(value, requires_grad=True).backward()
        >>> losses.take(), losses.take()
        (2.0, None)
        >>> losses.listen(False)
    """

    def __init__(self) -> None:
        self._heard: deque[Tensor | float] = deque(maxlen=MOST_HEARD)
        self._original: Callable[..., Any] | None = None
        self.listens = self._means = False

    def listen(self, wanted: bool, means: bool = False) -> None:
        """Hear the losses or not; with `means`, refuse those that are sums over a mini-batch."""
        self.listens, self._means = wanted, means
        if (wanted or means) == (self._original is not None):
            return
        if self._original is not None:
            torch.Tensor.backward, self._original = self._original, None  # type: ignore[method-assign]
            self._heard.clear()
            return
        original = self._original = torch.Tensor.backward

        def backward(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if self._means:
                refuse_sum(tensor)
            if self.listens and tensor.numel() == 1:
                self._heard.append(tensor.detach())
            return original(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]

        torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]

    def read(self) -> None:
        """Read the values that wait for no device, in a moment in which this worker waits anyway."""
        for place, loss in enumerate(self._heard):
            if isinstance(loss, Tensor) and loss.is_cpu:
                self._heard[place] = loss.item()

    def drain(self) -> list[Tensor | float]:
        """All of them, read or not."""
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def take(self) -> float | None:
        """Their mean; None if there was none. On a GPU this waits for them, as the push that follows does anyway."""
        if not self._heard:
            return None
        heard = self.drain()
        return sum(map(float, heard)) / len(heard)
