"""Curves of several seeds as one mean with a band."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from polyrhythm.telemetry.result import EvalPoint, RunResult

POINTS = 200
"""Points of a mean curve; a single run keeps its own."""


class Band(NamedTuple):
    """Mean of a quantity on a grid, and its sample standard deviation (0 for one seed). Arrays of one length."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    deviation: NDArray[np.float64]


def band(runs: Sequence[RunResult], x: Callable[[EvalPoint], float], y: Callable[[EvalPoint], float]) -> Band | None:
    """The curves of `runs`, interpolated linearly, over the stretch that all of them cover; None if there is none.

    Points that are not finite, the last ones of a diverged run, are left out.
    """
    curves = [curve for run in runs if (curve := finite_points(run, x, y))]
    if not curves:
        return None
    if len(curves) == 1:
        xs, ys = np.array(curves[0]).T
        return Band(xs, ys, np.zeros_like(ys))
    start, stop = max(curve[0][0] for curve in curves), min(curve[-1][0] for curve in curves)
    if stop < start:
        return None
    grid = np.linspace(start, stop, POINTS)
    values = np.stack([np.interp(grid, *np.array(curve).T) for curve in curves])
    return Band(grid, values.mean(axis=0), values.std(axis=0, ddof=1))


def finite_points(
    run: RunResult, x: Callable[[EvalPoint], float], y: Callable[[EvalPoint], float]
) -> list[tuple[float, float]]:
    points = [(float(x(point)), float(y(point))) for point in run.curve]
    return [point for point in points if all(map(math.isfinite, point))]
