"""Hears the losses of a script, the scalars that it calls ``backward()`` on, and the figures that it reports itself.

Where nobody needs their values, they are only looked at for one that is not finite. Several passes of one step, as in
gradient accumulation, are averaged. Under a GradScaler the value is the scaled one, which moves only when the scale
does.
"""

import contextlib
import copy
import math
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.shard_protocol import MOST_FIGURE_NAME, MOST_FIGURES
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.divergence import EXPLODED, LossWatch, OnDivergence

MOST_HEARD = 1024
"""Losses that are kept until a step takes them: a script may call ``backward()`` for what no step of ours follows."""

MOST_COPIES = 64
"""Losses on their way from a GPU; of one that is further behind the oldest are not looked at."""


class KeptReplica(NamedTuple):
    epoch: int
    model: dict[str, Any]
    states: list[Any]


class Guard:
    """Says once what is wrong with the losses, and keeps the state at the start of the last two epochs.

    Args:
        replica: the script's model and optimizer.
        response: what is done about a divergence; only for "rollback" anything is kept.
        factor: of `LossWatch`.

    Example:
        >>> import torch
        >>> from torch import nn, optim
        >>> model = nn.Linear(1, 1)
        >>> guard = Guard(ScriptReplica(model, optim.SGD(model.parameters(), lr=1.0)), "rollback")
        >>> guard.keep(0)
        >>> with torch.no_grad():
        ...     before = model.weight.item(), model.weight.fill_(float("nan"))
        >>> guard.see(float("nan")), guard.see(float("nan"))
        ('is nan', None)
        >>> guard.say_again()
        >>> guard.see(float("nan"))
        'is nan'
        >>> guard.go_back(0)
        >>> model.weight.item() == before[0]
        True
    """

    def __init__(
        self, replica: ScriptReplica, on_divergence: OnDivergence = "ignore", factor: float = EXPLODED
    ) -> None:
        self._replica = replica
        self._on_divergence = on_divergence
        self._factor = factor
        self._watch = LossWatch(factor)
        self._has_said = False
        self._kept: list[KeptReplica] = []
        self._before_trial: list[KeptReplica] = []

    @property
    def listens(self) -> bool:
        return self._on_divergence != "ignore"

    @property
    def goes_back(self) -> bool:
        return self._on_divergence == "rollback"

    def see(self, loss: float | None) -> str | None:
        if loss is None or not self.listens or self._has_said:
            return None
        why = self._watch.see(loss)
        self._has_said = why is not None
        return why

    def keep(self, epoch: int) -> None:
        if self.goes_back:
            self._kept = [*self._kept[-1:], self._copy(epoch)]

    def keep_before_trial(self, phase: int) -> None:
        """Keep the state in which this phase begins, in place of what was kept before another trial."""
        self._before_trial = [self._copy(-phase)]

    def _copy(self, epoch: int) -> KeptReplica:
        model = {name: copied(value) for name, value in self._replica.model.state_dict().items()}
        return KeptReplica(epoch, model, self._replica.copy_state())

    def go_back(self, epoch: int) -> None:
        """Make the state at hand that which was kept as this; losses are seen again."""
        kept = next(each for each in (*self._kept, *self._before_trial) if each.epoch == epoch)
        self._replica.model.load_state_dict(kept.model)
        self._replica.set_state(copy.deepcopy(kept.states))

    def say_again(self) -> None:
        """Who was told may have died before it was heard; what is wrong still is seen at the next loss."""
        self._has_said = False

    def start_again(self) -> None:
        """The job has gone back: what was seen so far says nothing any more, but for how the losses began."""
        self._watch = LossWatch(self._factor, first=self._watch.first)
        self._has_said = False


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


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

SHOWN_S = 0.25
"""Seconds between two losses that the coordinator is told of only to show them."""


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
        self._heard: deque[Tensor] = deque(maxlen=MOST_HEARD)
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

    def drain(self) -> list[Tensor]:
        """All of them, not read."""
        heard = list(self._heard)
        self._heard.clear()
        return heard

    def take(self) -> float | None:
        """Their mean; None if there was none. On a GPU this waits for them, as the push that follows does anyway."""
        if not self._heard:
            return None
        heard = self.drain()
        return float(sum(loss.item() for loss in heard) / len(heard))


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

    def see(self, losses: Sequence[Tensor], step: int) -> tuple[int, float] | None:
        """Of the losses that are known by now, the step and the value of one that is not finite."""
        for loss in losses:
            if loss.is_cuda:
                self._fetch(loss, step)
            elif not math.isfinite(value := self._know(loss)):
                return step, value
        return self._arrived() if self._in_flight else None

    def _know(self, loss: Tensor) -> float:
        self.latest = float(loss.item())
        return self.latest

    def _fetch(self, loss: Tensor, step: int) -> None:
        copy, copied = loss.to("cpu", non_blocking=True), torch.cuda.Event()  # type: ignore[no-untyped-call]
        copied.record(torch.cuda.current_stream(loss.device))
        self._in_flight.append(OnItsWay(step, copy, copied))

    def _arrived(self) -> tuple[int, float] | None:
        while self._in_flight and self._in_flight[0].copied.query():  # type: ignore[no-untyped-call]
            step, loss, _ = self._in_flight.popleft()
            if not math.isfinite(value := self._know(loss)):
                return step, value
        return None


class ScriptFigures:
    """What the script reports since it was last taken, the latest of each name.

    Example:
        >>> figures = ScriptFigures()
        >>> figures.tell({"accuracy": 0.5, "loss": torch.tensor(2.0)})
        >>> figures.take(), figures.take()
        ({'accuracy': 0.5, 'loss': 2.0}, {})
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._latest: dict[str, float] = {}

    def tell(self, values: Mapping[str, Any]) -> None:
        """Report values.

        Raises:
            UsageError: for one that is no number, a name that cannot be, or too many names.
        """
        read = {checked_name(name): number(name, value) for name, value in values.items()}
        if len(self._names | read.keys()) > MOST_FIGURES:
            raise UsageError(f"log takes {MOST_FIGURES} names at most; {next(iter(read))!r} is one too many")
        with self._lock:
            self._names |= read.keys()
            self._latest |= read

    def hear(self, name: str, value: Any) -> None:
        """Report one value that was meant for somebody else, if it can be."""
        with contextlib.suppress(UsageError):
            self.tell({str(name)[-MOST_FIGURE_NAME:]: value})

    def take(self) -> dict[str, float]:
        with self._lock:
            taken, self._latest = self._latest, {}
        return taken


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MOST_FIGURE_NAME:
        raise UsageError(f"a name for log must be a text of 1 to {MOST_FIGURE_NAME} characters but got {name!r}")
    return name


def number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{name} must be a number for log but got {value!r}") from None


WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""Modules whose `SummaryWriter` a script may use."""


class WriterEar:
    """Hears what a script tells its TensorBoard writer, of the modules that it has imported.

    Args:
        figures: gets it.
    """

    def __init__(self, figures: ScriptFigures) -> None:
        self._figures = figures
        modules = [sys.modules[name] for name in WRITERS if name in sys.modules]
        self._originals = [(module.SummaryWriter, module.SummaryWriter.add_scalar) for module in modules]
        for writer, original in self._originals:
            writer.add_scalar = self._hearing(original)

    def close(self) -> None:
        """Leave the writers as they were."""
        for writer, original in self._originals:
            writer.add_scalar = original

    def _hearing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_scalar(writer: Any, tag: str, scalar_value: Any, *args: Any, **kwargs: Any) -> Any:
            self._figures.hear(tag, scalar_value)
            return original(writer, tag, scalar_value, *args, **kwargs)

        return add_scalar


def refuse_wrapped(model: nn.Module) -> None:
    """The session wraps the model itself."""
    if isinstance(model, (DistributedDataParallel, nn.DataParallel)):
        raise UsageError(f"model is wrapped in {type(model).__name__}; pass the plain module, model.module")


def refuse_unknown_share(config: JobConfig) -> None:
    """A share of one epoch would be served long before its time."""
    if parse_policy(config.policy).counts_shares and "epochs" not in config.given:
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
