"""How a script clips gradients between its backward pass and its step, of which nobody tells us but torch."""

import functools
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.nn.utils import clip_grad

NAMES = "clip_grad_norm_", "clip_grad_value_"


class MeanGradients(Protocol):
    @property
    def has_mean(self) -> bool: ...


class ClipEar:
    """Knows how the script has clipped the mean gradient in its last step, by function and parameters.

    Attributes:
        own_steps: that this rank has made itself, in synchronous mode.
        exchange: of its gradients; before there is one, what is clipped is taken for their mean.
    """

    def __init__(self) -> None:
        self.own_steps = 0
        self.exchange: Callable[[], MeanGradients | None] = lambda: None
        self._listens = False
        self._step = 0
        self._clips: dict[tuple[str, tuple[int, ...]], Callable[[], object]] = {}

    def listen(self) -> None:
        """Once a process, also where a module has imported the functions by name before."""
        if self._listens:
            return
        from torch._dynamo import dont_skip_tracing  # imported already, by an optimizer

        self._listens = True
        for name in NAMES:
            original = getattr(clip_grad, name)
            heard = dont_skip_tracing(self._heard(name, original))  # else a compiler refuses to go on through it
            for module in list(sys.modules.values()):
                if getattr(module, "__dict__", {}).get(name) is original:
                    setattr(module, name, heard)

    def _heard(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def clip(parameters: Tensor | Iterable[Tensor], *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling():
                return original(parameters, *args, **kwargs)
            clipped = [parameters] if isinstance(parameters, Tensor) else list(parameters)
            self._note(name, clipped, lambda found: original(found, *args, **kwargs))
            return original(clipped, *args, **kwargs)

        return clip

    def _note(self, name: str, parameters: list[Tensor], clip: Callable[[list[Tensor]], object]) -> None:
        if self._step != self.own_steps:
            self._clips.clear()
            self._step = self.own_steps
        exchange = self.exchange()
        if exchange is None or exchange.has_mean:
            alive = [weakref.ref(each) for each in parameters]
            self._clips[name, tuple(map(id, parameters))] = lambda: again(clip, alive)

    def repeat(self) -> None:
        """Clip the gradients of a step that the script leaves out as it has clipped those of its last one."""
        if self._step + 1 >= self.own_steps:
            for clip in self._clips.values():
                clip()


CLIPS = ClipEar()


def again(clip: Callable[[list[Tensor]], object], parameters: Iterable["weakref.ref[Tensor]"]) -> None:
    found = [each for reference in parameters if (each := reference()) is not None]
    if any(parameter.grad is not None for parameter in found):
        clip(found)
