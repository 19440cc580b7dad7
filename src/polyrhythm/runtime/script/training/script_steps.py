"""How the steps of a training get their mini-batches: in one way until the session begins, then in one of two."""

from collections.abc import Iterator
from typing import Any, Protocol

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.runtime.script.data.passes import PassListener


class ScriptSteps(PassListener, Protocol):
    """Follows the script from its mini-batches to its steps."""

    own: bool
    """Whether the script reads its data itself, from what it may keep open after its last step."""
    drawn: bool
    """Whether they come from no loader."""
    awaits_use: bool
    """Whether `used` is to be told."""

    @property
    def together(self) -> bool:
        """Whether every rank of a script with ranks makes the step under way."""

    @property
    def inside(self) -> bool:
        """Whether the script is within a pass that it trains on."""

    @property
    def begun(self) -> int:
        """Steps since the session began that the script alone would have made before the one at hand."""

    @property
    def reached(self) -> int:
        """The same after it; of workers in synchronous mode all know the same number."""

    def read(self, loader: DataLoader[Any]) -> Iterator[Any] | None:
        """What a pass over this loader is to give, unless that shows with its first mini-batch."""

    def trains_on(self, loader: DataLoader[Any]) -> bool:
        """Whether a pass over this loader is to be followed."""

    def forward(self, trains: bool, inputs: Any) -> None:
        """A model is called; whether a step may follow."""

    def used(self) -> None:
        """The script computes what a step may follow."""

    def unscale(self) -> None:
        """A GradScaler is about to look at the gradients."""

    def before_step(self, optimizer: Optimizer) -> None: ...

    def after_step(self, optimizer: Optimizer, within: bool) -> None:
        """An optimizer has stepped; whether `within` a wrapper's forward."""

    def returned(self) -> None:
        """A wrapper's forward is over, within which optimizers have stepped."""

    def pass_epoch(self) -> None:
        """Make an epoch without data, in which others make theirs, and get the parameters of its end."""

    def leave_data(self) -> None:
        """The script has left the loop in which one rank hands mini-batches on to the others."""

    def leave_loop(self) -> None:
        """The script has left the innermost loop around its steps and what it reads for them."""

    def is_open(self, outside: bool) -> bool:
        """Whether the script is in its loop over an epoch; a script `outside` of it has left it."""

    def end(self) -> None:
        """The training is over."""
