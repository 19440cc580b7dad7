"""Randomised data injection: in every step some workers share a part of their mini-batch with all others.

With n workers of which each has only its own kind of samples, ``ceil(alpha n)`` sharers, drawn anew in each step, send
a share beta of their mini-batch to everyone else. A worker draws ``b' = b / (1 + alpha beta n)`` samples of its own, so
that what it computes on stays near b. This is Section III-E of SelSync. Choices follow from the seed and the step, so
every worker makes them by itself. (The paper's b' of 11 and 6 for b = 32 are those of n = 8.)

A step, an epoch and the workload count the samples that workers draw themselves; what they receive comes on top.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import TYPE_CHECKING, Any

import numpy as np

from polyrhythm.errors import UsageError

if TYPE_CHECKING:  # the configuration asks for `own_batch` without importing torch
    from torch import Tensor

SLACK = 1e-9
"""Keeps a share such as 0.1 * 30 from being rounded up because of its last bit."""


@dataclass(frozen=True, slots=True)
class Injection:
    """Who shares what in which step.

    Args:
        alpha: share of the workers that send, above 0 and at most 1.
        beta: share of their mini-batch that they send, above 0 and at most 1.
        seed: of the choices.

    Example:
        >>> injection = Injection(0.5, 0.5, seed=0)
        >>> injection.sharers(step=3, workers=range(4)), injection.rows(step=3, sharer=2, samples=5)
        ((1, 3), (2, 4))
    """

    alpha: float
    beta: float
    seed: int = 0

    def sharers(self, step: int, workers: Sequence[int]) -> tuple[int, ...]:
        """Which of these workers send in a step, ascending."""
        count = math.ceil(self.alpha * len(workers) - SLACK)
        random = np.random.default_rng((self.seed, step))
        return tuple(sorted(int(worker) for worker in random.choice(workers, count, replace=False)))

    def rows(self, step: int, sharer: int, samples: int) -> tuple[int, ...]:
        """Which samples of its mini-batch a sharer sends, ascending; at least one."""
        random = np.random.default_rng((self.seed, step, sharer))
        return tuple(sorted(random.choice(samples, self.count(samples), replace=False).tolist()))

    def count(self, samples: int) -> int:
        """How many samples of a mini-batch are sent."""
        return max(1, round(self.beta * samples))


def check_injection(injection: Sequence[float]) -> None:
    """Two shares.

    Raises:
        UsageError: if they are none.
    """
    given: Any = injection
    shares = tuple(given) if isinstance(given, Iterable) else ()
    if len(shares) != 2 or not all(isinstance(share, Real) and 0 < float(share) <= 1 for share in shares):
        raise UsageError(f"injection must be two shares in (0, 1], alpha and beta, but got {shares or given!r}")


def parse_injection(spec: str) -> tuple[float, float] | None:
    """The shares that a spec names, as in ``0.5,0.25`` for alpha and beta; None for ``none``.

    >>> parse_injection("0.5,0.25"), parse_injection("none")
    ((0.5, 0.25), None)

    Raises:
        UsageError: for any other text.
    """
    if spec == "none":
        return None
    try:
        shares = tuple(float(word) for word in spec.split(","))
        check_injection(shares)
    except ValueError:
        raise UsageError(
            f"injection must be none or two shares in (0, 1], alpha and beta, as in 0.5,0.5, but got {spec!r}"
        ) from None
    return shares[0], shares[1]


def own_batch(batch_size: int, alpha: float, beta: float, workers: int) -> int:
    """Samples that a worker draws itself: b' = b / (1 + alpha beta n), rounded, at least 1.

    >>> [own_batch(32, share, share, workers) for share, workers in ((0.5, 10), (0.75, 10), (0.5, 8), (0.75, 8))]
    [9, 5, 11, 6]
    """
    return max(1, round(batch_size / (1 + alpha * beta * workers)))


@dataclass(slots=True)
class Intake:
    """How many samples of each source each worker has received."""

    counts: dict[int, dict[int, int]] = field(default_factory=dict)

    def add(self, source: int, receiver: int, samples: int) -> None:
        """A few more."""
        row = self.counts.setdefault(source, {})
        row[receiver] = row.get(receiver, 0) + samples

    @property
    def samples(self) -> int:
        """All of them."""
        return sum(sum(row.values()) for row in self.counts.values())

    def sorted(self) -> dict[int, dict[int, int]]:
        """Counts by source, then by receiver."""
        return {source: dict(sorted(row.items())) for source, row in sorted(self.counts.items())}


def received(
    injection: Injection, step: int, worker: int, drawn: "Mapping[int, Tensor]", intake: Intake
) -> "list[Tensor]":
    """Indices of the samples that a worker receives in a step.

    Args:
        injection: the injection.
        step: number of the worker's step.
        worker: who computes.
        drawn: what every live worker has drawn last.
        intake: counts what is received.
    """
    parts = []
    for sharer in injection.sharers(step, sorted(drawn)):
        if sharer != worker:
            rows = injection.rows(step, sharer, len(drawn[sharer]))
            parts.append(drawn[sharer][list(rows)])
            intake.add(sharer, worker, len(rows))
    return parts
