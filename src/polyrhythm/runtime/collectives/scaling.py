"""A script's GradScaler, of which nobody tells us but torch."""

import functools
import gc
import weakref
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn


class ScalerEar:
    """Knows the GradScaler that the script uses, as soon as it has looked at gradients."""

    def __init__(self) -> None:
        self._scaler: weakref.ref[torch.amp.GradScaler] | None = None
        self._original: Callable[..., Any] | None = None

    def listen(self) -> None:
        """Once a process: scripts may use a scaler before a session and after it."""
        if self._original is not None:
            return
        original = self._original = torch.amp.GradScaler._unscale_grads_

        @functools.wraps(original)
        def heard(scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
            self._scaler = weakref.ref(scaler)
            return original(scaler, *args, **kwargs)

        torch.amp.GradScaler._unscale_grads_ = heard  # type: ignore[method-assign, assignment]

    @property
    def scale(self) -> float:
        """What gradients are multiplied with now."""
        scaler = unused_scaler() if self._scaler is None else self._scaler()
        return 1.0 if scaler is None else scaler.get_scale()


def unused_scaler() -> torch.amp.GradScaler | None:
    """One that this process has made and not used: the others have, if this rank has left its first steps out."""
    found = (each for each in gc.get_objects() if issubclass(type(each), torch.amp.GradScaler))
    return next((scaler for scaler in found if scaler.is_enabled()), None)


EAR = ScalerEar()


def unscale(parameters: Iterable[nn.Parameter]) -> bool:
    """Do to gradients what the GradScaler of the others does; whether they are finite, so that it lets them step."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    if EAR.scale == 1.0:
        return True
    for gradient in gradients:
        gradient.mul_(torch.tensor(EAR.scale, dtype=torch.float64).reciprocal().float().to(gradient.device))
    return all(bool(gradient.isfinite().all()) for gradient in gradients)
