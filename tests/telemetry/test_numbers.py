import math

import pytest

from polyrhythm.telemetry.numbers import duration, number


@pytest.mark.parametrize("write", [number, duration])
def test_what_is_not_finite_can_be_written(write: object) -> None:
    assert callable(write)
    assert [write(value) for value in (math.inf, -math.inf, math.nan)] == ["inf", "-inf", "-"]
