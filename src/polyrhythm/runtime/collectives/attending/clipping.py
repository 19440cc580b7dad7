"""How a script clips gradients between its backward pass and its step, of which nobody tells us but torch."""

import functools
import weakref
from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor, nn
from torch.nn.utils import clip_grad

NAMES = "clip_grad_norm_", "clip_grad_value_"


class ClipEar:
    """Knows how the script has clipped the gradients of its steps, by function and parameters."""

    def __init__(self) -> None:
        self._listens = False
        self._clips: dict[tuple[str, tuple[int, ...]], Callable[[], object]] = {}

    def listen(self) -> None:
        """Once a process. A name that a script has imported by itself before is not heard."""
        if self._listens:
            return
        self._listens = True
        for name in NAMES:
            heard = self._heard(name, getattr(clip_grad, name))
            setattr(clip_grad, name, heard)
            setattr(nn.utils, name, heard)

    def _heard(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
            clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            alive = [weakref.ref(each) for each in clipped]
            self._clips[name, tuple(map(id, clipped))] = lambda: again(original, alive, *args, **kwargs)
            return original(clipped, *args, **kwargs)

        return clip

    def repeat(self) -> None:
        """Clip the gradients of a step that the script leaves out as it has clipped those of its own."""
        for clip in self._clips.values():
            clip()


CLIPS = ClipEar()


def again(original: Callable[..., Any], parameters: Iterable["weakref.ref[Tensor]"], *args: Any, **kwargs: Any) -> None:
    found = [each for reference in parameters if (each := reference()) is not None]
    if any(parameter.grad is not None for parameter in found):
        original(found, *args, **kwargs)
