"""Hears the losses of an unmodified script: the scalars that it calls ``backward()`` on.

Only while a policy needs them. Several passes of one step, as in gradient accumulation, are averaged. Under a
GradScaler the value is the scaled one, which moves only when the scale does.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


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
        self._heard: list[Tensor] = []
        self._original: Callable[..., Any] | None = None
        self.listens = False

    def listen(self, wanted: bool) -> None:
        if wanted == (self._original is not None):
            return
        self.listens = wanted
        if self._original is not None:
            torch.Tensor.backward, self._original = self._original, None  # type: ignore[method-assign]
            self._heard.clear()
            return
        original = self._original = torch.Tensor.backward

        def backward(tensor: Tensor, *args: Any, **kwargs: Any) -> Any:
            if tensor.numel() == 1:
                self._heard.append(tensor.detach())
            return original(tensor, *args, **kwargs)  # type: ignore[no-untyped-call]

        torch.Tensor.backward = backward  # type: ignore[method-assign, assignment]

    def take(self) -> float | None:
        """Their mean; None if there was none. On a GPU this waits for them, as the push that follows does anyway."""
        if not self._heard:
            return None
        mean = sum(loss.item() for loss in self._heard) / len(self._heard)
        self._heard.clear()
        return float(mean)
