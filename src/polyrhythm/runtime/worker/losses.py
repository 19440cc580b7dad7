"""Hears the losses of an unmodified script: the scalars that it calls ``backward()`` on.

Only while a policy needs them. Several passes of one step, as in gradient accumulation, are averaged. Under a
GradScaler the value is the scaled one, which moves only when the scale does.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.divergence import EXPLODED, LossWatch, OnDivergence
from polyrhythm.training.optimizer import OptimizerState


class Kept(NamedTuple):
    epoch: int
    model: dict[str, Any]
    optimizer: OptimizerState


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
        self._kept: list[Kept] = []

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
            model = {name: copied(value) for name, value in self._replica.model.state_dict().items()}
            self._kept = [*self._kept[-1:], Kept(epoch, model, self._replica.export_state())]

    def go_back(self, epoch: int) -> None:
        """Make the state at hand that of the start of an epoch that was kept; losses are seen again."""
        kept = next(each for each in self._kept if each.epoch == epoch)
        self._replica.model.load_state_dict(kept.model)
        self._replica.import_state(kept.optimizer)

    def start_again(self) -> None:
        """The job has gone back: what was seen so far says nothing any more, but for how the losses began."""
        self._watch = LossWatch(self._factor, first=self._watch.first)
        self._has_said = False


def copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


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
