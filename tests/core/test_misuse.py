"""What no driver could carry out is told from what one can."""

import pytest

from polyrhythm.core import Proceed, Settings, Wake
from polyrhythm.core.misuse import malformed


@pytest.mark.parametrize("digits", [400, 5000])
def test_a_number_that_no_float_can_hold_is_refused(digits: int) -> None:
    """Times are added to floats and shown as such, which raises."""
    value = 10**digits
    for time in (value, -value):
        assert malformed((Wake(time),)).startswith("Wake.time_s must be a number that a float can hold but got ")
    rate = malformed((Proceed((0,), settings=Settings(lr_scale=value)),))
    assert rate.startswith("Settings.lr_scale must be a finite number but got ")


def test_whole_numbers_may_be_times() -> None:
    assert malformed((Wake(3), Proceed((0,), settings=Settings(lr_scale=2)))) == ""
