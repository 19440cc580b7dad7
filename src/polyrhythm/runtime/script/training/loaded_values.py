"""Values that a script loads by itself in the middle of its training, which servers and averages do not see."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyrhythm.training.signals import sizes_of

LOADED = (
    "the script loads parameters within its loop, where the job's are on servers or come from averages and do not "
    "follow; load them between two epochs of a loader, or use bsp"
)


class LoadedValues:
    """Tells whether what the script has loaded changes what it trains.

    Args:
        parameters: that the job trains.

    Example:
        >>> model = nn.Linear(1, 1)
        >>> loaded = LoadedValues(list(model.parameters()))
        >>> best = {name: value + 1 for name, value in model.state_dict().items()}
        >>> with loaded.load(model):
        ...     _ = model.load_state_dict(best)
        >>> loaded.take(), loaded.take()
        (True, False)
    """

    def __init__(self, parameters: Sequence[nn.Parameter]) -> None:
        self._parameters, self._known = parameters, frozenset(map(id, parameters))
        self._before: Tensor | None = None
        """Sizes before the first load after which the parameters differ."""
        self._at_end: Tensor | None = None
        """Sizes at the end of the latest epoch, until the next step."""
        self.optimizer = False
        """Whether the script has given an optimizer another state since then."""

    def listen(self, optimizer: Optimizer) -> Any:
        """The handle of what notes that this optimizer loads a state."""
        return optimizer.register_load_state_dict_post_hook(self._note)

    def _note(self, optimizer: Optimizer) -> None:
        self.optimizer = True

    @contextmanager
    def load(self, module: nn.Module) -> Iterator[None]:
        """Around a load into a module; others for an evaluation, and then the own ones back, change nothing."""
        if self._known.isdisjoint(map(id, module.parameters())):
            yield
            return
        if self._before is None:
            self._before = sizes_of(self._parameters)
        yield
        if torch.equal(self._before, sizes_of(self._parameters)):
            self._before = None

    def take(self) -> bool:
        """A step begins: whether parameters differ by a load since the one before, or the end of the latest epoch."""
        before, self._before, self._at_end = self._before, None, None
        return before is not None

    def end_epoch(self, measured: bool) -> None:
        """All stand at the end of an epoch; what is loaded from here on is no part of the loop.

        Args:
            measured: whether it matters that parameters change until the next one.
        """
        self._at_end, self._before, self.optimizer = sizes_of(self._parameters) if measured else None, None, False

    @property
    def since_epoch(self) -> bool:
        """Whether parameters or an optimizer's state are others than at the end of the latest epoch, without a step."""
        if self._at_end is None:
            return False
        return self.optimizer or not torch.equal(self._at_end, sizes_of(self._parameters))
