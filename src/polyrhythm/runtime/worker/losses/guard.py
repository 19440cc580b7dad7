"""What a worker does about losses that diverge: it says so, and keeps a state to go back to."""

import copy
from typing import Any, NamedTuple

from torch import Tensor

from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.divergence import EXPLODED, LossWatch, OnDivergence


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
