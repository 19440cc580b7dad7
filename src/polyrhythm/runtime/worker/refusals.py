"""What a session refuses of a script that uses it."""

import inspect
import os
from collections.abc import Mapping
from threading import local
from typing import Any, NoReturn

from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, IterableDataset

from polyrhythm.core.arguments import MOST_SEED, whole_number
from polyrhythm.errors import UsageError, did_you_mean
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.wire.config_sources import PILOT
from polyrhythm.runtime.wire.job_config import OF_EPOCHS, OF_UNKNOWN, JobConfig


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


def refuse_shares(config: JobConfig, measured: bool = True) -> None:
    """A share of one epoch would be served long before its time, and one of what has no length never.

    The number of epochs helps nobody where they have no length, so that is said first.
    """
    counts = parse_policy(config.policy).counts_shares or PILOT in os.environ
    if counts and not measured:
        raise UsageError(f"policy {config.policy} {OF_UNKNOWN}")
    if counts and "epochs" not in config.given:
        raise UsageError(f"policy {config.policy} {OF_EPOCHS}")


class OpenMark:
    """That a session is open, and in which process: a fork has none. It may be left in another thread."""

    process = 0


class ThreadMark(local):
    """The latest session of a thread."""

    latest = OpenMark()


MARKS = ThreadMark()


def refuse_second() -> None:
    """It would be a second job, or this rank once more in the same one."""
    if MARKS.latest.process == os.getpid():
        raise UsageError(
            "a session is open already; end its with block first, or give one session both models, as in "
            "polyrhythm.session(torch.nn.ModuleList([a, b]), optimizer)"
        )


def note_open() -> OpenMark:
    MARKS.latest = mark = OpenMark()
    mark.process = os.getpid()
    return mark


def check_numbers(batch_size: object, accumulate: object, seed: object) -> None:
    # A DataLoader with a batch_size of None gives single samples, of which no step can be made here.
    whole_number("batch_size", batch_size, 1)
    whole_number("accumulate", accumulate, 1)
    whole_number("seed", seed, 0, MOST_SEED)


def check_state(state: object) -> None:
    """Refuse what a session's `state_dict` has not made."""
    if not isinstance(state, Mapping):
        raise UsageError(f"session state must be what state_dict gives but got {state!r}")
    if not {"epoch", "policy"} <= set(state) <= {"epoch", "policy", "position"}:
        has = ", ".join(sorted(map(str, state))) or "nothing"
        raise UsageError(f"session state must have epoch and policy but has {has}; give what session.state_dict() gave")
    whole_number("epoch of the session state", state["epoch"], -1)


def check_options(options: Mapping[str, Any]) -> None:
    # Which samples a worker reads is not for its loader to say.
    for name in ("sampler", "batch_sampler", "drop_last"):
        if name in options:
            raise UsageError(f"session.loader takes no {name}: the job decides who reads which samples")
    known = {*inspect.signature(DataLoader.__init__).parameters} - {"self", "dataset", "sampler", "batch_sampler"}
    for name in options:
        if name not in known:
            raise UsageError(f"session.loader takes no option {name!r}: {did_you_mean(name, known - {'drop_last'})}")


def check_dataset(dataset: object) -> None:
    # Only what has a length and an index can be shared out.
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(
            f"dataset {type(dataset).__name__} has no length or no index; workers share a map-style dataset"
        )
    if not len(dataset):
        raise UsageError(f"dataset {type(dataset).__name__} is empty; give session.loader at least one sample")


def refuse_step(optimizer: Optimizer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """Of these arguments, whose gradients the hook before it cannot see."""
    refuse_closure(args, kwargs)
    refuse_scaled(optimizer)


def refuse_untimely(samples: int, due: bool) -> None:
    """A step belongs to all mini-batches of so many `samples` since the one before."""
    if not samples:
        raise UsageError("optimizer.step without a mini-batch: make one step for each batch of session.loader")
    if not due:
        raise UsageError("optimizer.step came too early; with accumulate, step when session.step_due is true")


def refuse_closure(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
    """A closure computes gradients inside the step, after the hook; `args` begin with the optimizer itself."""
    if any(argument is not None for argument in (*args[1:], *kwargs.values())):
        raise UsageError("optimizer.step was given a closure; call backward() before step() and pass none")


def refuse_scaled(optimizer: Optimizer) -> None:
    """A fused optimizer unscales inside its step, so the gradients that the hook sees are not the true ones."""
    if getattr(optimizer, "grad_scale", None) is not None:
        raise UsageError("GradScaler with a fused optimizer hides the true gradients; use fused=False")
