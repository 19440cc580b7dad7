import math

import numpy as np
import pytest

from polyrhythm.report.curves import band
from polyrhythm.telemetry.result import EvalPoint, RunResult
from tests.report.results import result


def run(*points: tuple[float, float]) -> RunResult:
    return result(curve=[EvalPoint(time_s, 0, 0, accuracy, 0.0) for time_s, accuracy in points])


def accuracy_band(*runs: RunResult):  # type: ignore[no-untyped-def]
    return band(runs, lambda point: point.time_s, lambda point: point.accuracy)


def test_one_seed_keeps_its_points_and_has_no_band() -> None:
    b = accuracy_band(run((0.0, 0.1), (3.0, 0.7)))
    assert b.x.tolist() == [0.0, 3.0]
    assert b.mean.tolist() == [0.1, 0.7]
    assert not b.deviation.any()


def test_seeds_are_interpolated_where_all_have_data() -> None:
    b = accuracy_band(run((0.0, 0.0), (10.0, 1.0)), run((0.0, 0.0), (5.0, 1.0)))
    assert (b.x[0], b.x[-1]) == (0.0, 5.0)
    assert b.mean[-1] == pytest.approx(0.75)
    assert b.deviation[-1] == pytest.approx(np.std([0.5, 1.0], ddof=1))


def test_what_is_not_finite_is_left_out() -> None:
    assert accuracy_band(run((0.0, 0.1), (1.0, math.nan))).x.tolist() == [0.0]
    assert accuracy_band(run((0.0, math.inf))) is None
    assert accuracy_band(run((0.0, 0.1)), run((5.0, 0.1))) is None
