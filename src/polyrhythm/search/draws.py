"""The mean of a few runs drawn from a pool: its whole distribution, enumerated where feasible, else sampled."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, combinations_with_replacement
from math import comb, factorial, prod

import numpy as np
from numpy.typing import NDArray

DrawnNumbers = NDArray[np.float64]

ENUMERABLE = 100_000
"""Draws up to which all are listed."""

ROUNDING = 1e-12
"""Means that differ by less are equal: the sums of accuracies are rounded."""


@dataclass(frozen=True)
class Means:
    """Means in ascending order, and how probable each is."""

    values: DrawnNumbers
    weights: DrawnNumbers
    exact: bool

    def at_least(self, marks: DrawnNumbers) -> DrawnNumbers:
        """Probability that the mean reaches each of `marks`."""
        above = np.concatenate([np.cumsum(self.weights[::-1])[::-1], [0.0]])
        reached: DrawnNumbers = np.clip(above[np.searchsorted(self.values, marks - ROUNDING)], 0.0, 1.0)
        return reached


def means_of(pool: Sequence[float], runs: int, replacement: bool, draws: int, rng: np.random.Generator) -> Means:
    """Distribution of the mean of `runs` values of `pool`.

    Args:
        pool: the values, at least one.
        runs: how many are drawn; without replacement at most all of them are.
        replacement: whether a value can be drawn again.
        draws: samples, where there are too many combinations to list.
        rng: their source.

    Example:
        >>> means = means_of([1.0, 2.0, 4.0], 2, False, 0, np.random.default_rng(0))
        >>> means.values.tolist(), means.at_least(np.array([2.0])).round(3).tolist()
        ([1.5, 2.5, 3.0], [0.667])
    """
    size = len(pool)
    runs = runs if replacement else min(runs, size)
    exact = (comb(size + runs - 1, runs) if replacement else comb(size, runs)) <= ENUMERABLE
    if exact:
        listed = (combinations_with_replacement if replacement else combinations)(range(size), runs)
        indices, weights = enumerated(listed, runs, size, replacement)
    else:
        indices = sampled(size, runs, replacement, draws, rng)
        weights = np.full(draws, 1.0 / draws)
    means = np.asarray(pool, dtype=np.float64)[indices].mean(axis=1)
    order = np.argsort(means, kind="stable")
    return Means(means[order], weights[order], exact)


def enumerated(
    listed: Iterable[tuple[int, ...]], runs: int, size: int, replacement: bool
) -> tuple[NDArray[np.int64], DrawnNumbers]:
    """All draws and their probabilities; of those with repetitions, the number of orders in which each can come."""
    rows = list(listed)
    indices = np.fromiter(chain.from_iterable(rows), dtype=np.int64).reshape(len(rows), runs)
    if not replacement:
        return indices, np.full(len(rows), 1.0 / len(rows))
    orders = [factorial(runs) // prod(factorial(times) for times in Counter(row).values()) for row in rows]
    return indices, np.array([count / size**runs for count in orders])


def sampled(size: int, runs: int, replacement: bool, draws: int, rng: np.random.Generator) -> NDArray[np.int64]:
    if replacement:
        return rng.integers(size, size=(draws, runs))
    return rng.permuted(np.tile(np.arange(size), (draws, 1)), axis=1)[:, :runs]
