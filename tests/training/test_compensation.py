import pytest
import torch

from polyrhythm.errors import ScenarioError
from polyrhythm.training.compensation import (
    AdaptiveDelayCompensated,
    Compensation,
    DelayCompensated,
    LrByStaleness,
    parse_compensation,
)

GRADIENT = torch.tensor([1.0, -2.0, 0.0])
DRIFT = torch.tensor([0.5, 0.25, 3.0])


def test_specs_name_rules_and_their_values() -> None:
    assert parse_compensation("none") == Compensation()
    assert parse_compensation(" lr-staleness") == LrByStaleness()
    assert parse_compensation("dc-asgd:0.1") == DelayCompensated(0.1)
    assert parse_compensation("dc-asgd-adaptive:lambda=1,decay=0.5") == AdaptiveDelayCompensated(1.0, 0.5)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dc-agsd", "did you mean dc-asgd"),
        ("none:1", "has no parameter 'lambda': it takes none"),
        ("dc-asgd:decay=0.5", "has no parameter 'decay'"),
        ("dc-asgd:lamda=1", "did you mean lambda"),
        ("dc-asgd-adaptive:1,2", "has no parameter"),
        ("dc-asgd:x", "lambda must be a number in [0, inf) but got 'x'"),
        ("dc-asgd:-1", "got '-1'"),
        ("dc-asgd:nan", "got 'nan'"),
        ("dc-asgd-adaptive:decay=1", "decay must be a number in [0, 1) but got '1'"),
    ],
)
def test_bad_specs_are_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(ScenarioError) as caught:
        parse_compensation(spec)
    assert message in str(caught.value)


def test_the_rate_is_divided_by_the_staleness_but_never_raised() -> None:
    assert [LrByStaleness().lr_scale(staleness) for staleness in (0, 1, 4)] == [1.0, 1.0, 0.25]
    assert Compensation().lr_scale(9) == 1.0


def test_constant_delay_compensation_is_the_formula() -> None:
    gradient = GRADIENT.clone()
    corrected = DelayCompensated(0.1).correct(gradient, DRIFT, None)
    torch.testing.assert_close(corrected, GRADIENT + 0.1 * GRADIENT * GRADIENT * DRIFT)
    assert torch.equal(gradient, GRADIENT)


def test_adaptive_delay_compensation_is_the_formula_over_two_gradients() -> None:
    method, mean_square = AdaptiveDelayCompensated(2.0, decay=0.9), torch.zeros(3)
    expected_square = torch.zeros(3)
    for gradient in (GRADIENT, 3 * GRADIENT + 1):
        expected_square = 0.9 * expected_square + 0.1 * gradient**2
        expected = gradient + 2.0 / torch.sqrt(expected_square + 1e-7) * gradient**2 * DRIFT
        torch.testing.assert_close(method.correct(gradient, DRIFT, mean_square), expected)
    torch.testing.assert_close(mean_square, expected_square)


def test_strength_zero_is_no_compensation() -> None:
    assert torch.equal(DelayCompensated(0.0).correct(GRADIENT, DRIFT, None), GRADIENT)
    assert torch.equal(AdaptiveDelayCompensated(0.0).correct(GRADIENT, DRIFT, torch.zeros(3)), GRADIENT)
