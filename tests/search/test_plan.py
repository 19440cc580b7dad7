import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.search.plan import Knob, SearchPlan


def test_positions_run_from_the_fast_end_to_the_safe_one() -> None:
    knob = Knob("ssp:{}", safe=1, fast=33, whole=True)
    assert [knob.spec(position) for position in (0.0, 0.5, 1.0)] == ["ssp:33", "ssp:17", "ssp:1"]
    assert knob.target_spec == "ssp:1"
    assert Knob("selsync:{}", safe=0.1, fast=1.6, scale="log").value(0.5) == pytest.approx(0.4)
    assert Knob("local:{}", safe=1, fast=8, baseline="bsp").target_spec == "bsp"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"template": "ssp:3"}, "must have {} once"),
        ({"safe": 0.0}, "two different finite numbers"),
        ({"scale": "log"}, "ends above 0"),
    ],
)
def test_a_knob_that_cannot_be_turned_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        Knob(**fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"settings": 0}, "--settings must be at least 1 but got 0"),
        ({"runs": 1}, "--runs 1 shows no spread"),
        ({"error_rate": 0.6}, "--error-rate must be above 0 and at most 0.5 but got 0.6"),
        ({"early": 0.5}, "--early must be from 0 to below 0.5"),
        ({"target": 91.0}, "^--target must be a share of 1 but got 91; "),
        ({"beta": -0.1}, "^--beta must be a share of 1 but got -0.1; "),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(fields: dict[str, object], message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        SearchPlan(**fields)  # type: ignore[arg-type]
