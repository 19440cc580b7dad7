"""What a session refuses of a script that uses it."""

import os
from collections.abc import Mapping
from typing import Any, NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.wire.job_config import JobConfig

PILOT = "POLYRHYTHM_PILOT"
"""Environment variable of a run of a search, whose later runs count shares if this one does not."""


class NotOpen:
    """Stands for what a session has from its ``with`` on."""

    def __getattr__(self, name: str) -> NoReturn:
        raise UsageError("the session is not open; use it inside of: with polyrhythm.session(...) as session")


NOT_OPEN: Any = NotOpen()


def refuse_parts(model: object, optimizer: object) -> None:
    """The session wraps the model itself."""
    for name, given, kind in (("model", model, nn.Module), ("optimizer", optimizer, Optimizer)):
        if not isinstance(given, kind):
            what = f"{name} must be a torch {kind.__name__} but is {type(given).__name__}"
            raise UsageError(f"{what}; call polyrhythm.session(model, optimizer)")
    if isinstance(model, (DistributedDataParallel, nn.DataParallel)):
        raise UsageError(f"model is wrapped in {type(model).__name__}; pass the plain module, model.module")


def refuse_shares(config: JobConfig) -> None:
    """A share of one epoch would be served long before its time."""
    counts = parse_policy(config.policy).counts_shares or PILOT in os.environ
    if counts and "epochs" not in config.given:
        raise UsageError(
            f"policy {config.policy} counts shares of all epochs, and nobody has said how many there are; give "
            "polyrhythm run --epochs, or polyrhythm.session(epochs=...)"
        )


def refuse_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """A closure computes gradients inside the step, after the hook; `args` begin with the optimizer itself."""
    if any(argument is not None for argument in (*args[1:], *kwargs.values())):
        raise UsageError("optimizer.step was given a closure; call backward() before step() and pass none")


def refuse_scaled(optimizer: Optimizer) -> None:
    """A fused optimizer unscales inside its step, so the gradients that the hook sees are not the true ones."""
    if getattr(optimizer, "grad_scale", None) is not None:
        raise UsageError("GradScaler with a fused optimizer hides the true gradients; use fused=False")
