"""When training has diverged: a criterion on the losses of mini-batches, in the order in which they arrive."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias

OnDivergence: TypeAlias = Literal["ignore", "end", "rollback"]
"""What real workers do: nothing; end the job; or go back to a state that was good, and on under BSP."""

DIVERGED = 3
"""Exit code of a process whose training has diverged."""

EXPLODED = 5.0
"""Default of `LossWatch.factor`: untrained, ten classes have a loss of 2.3; this allows for 11.5."""


@dataclass(slots=True)
class LossWatch:
    """Looks at every loss; a few additions each.

    With m_k the mean of the k-th `window` losses, training has diverged when a loss is not finite, or when
    ``m_k > factor * max(m_1, floor)``. A loss that stays where it began is bad luck, not divergence.

    Args:
        factor: see above; inf looks at finiteness alone.
        window: losses of one mean.
        floor: least loss that m_1 counts as, so that a model that is trained already may get a little worse.

    Example:
        >>> watch = LossWatch(factor=2.0, window=2)
        >>> [watch.see(loss) for loss in (1.0, 1.0, 1.5, 1.5, 3.0)]
        [None, None, None, None, None]
        >>> watch.see(9.0)
        'is 6 in the mean of 2 mini-batches, 6 times that of the first'
    """

    factor: float = EXPLODED
    window: int = 50
    floor: float = 0.1
    first: float | None = None
    total: float = 0.0
    count: int = 0

    def see(self, loss: float) -> str | None:
        """What is wrong with the loss, if training has diverged."""
        if not math.isfinite(loss):
            return f"is {loss}"
        self.total += loss
        self.count += 1
        if self.count < self.window:
            return None
        mean, self.total, self.count = self.total / self.window, 0.0, 0
        if self.first is None:
            self.first = max(mean, self.floor)
        if mean <= self.factor * self.first:
            return None
        times = mean / self.first
        return f"is {mean:.4g} in the mean of {self.window} mini-batches, {times:.3g} times that of the first"
