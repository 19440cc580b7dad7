import pytest

from polyrhythm.report.agreement import Agreement, agreements, distance, misplaced, rows, verdict
from tests.report.results import result


def test_both_shells_are_laid_side_by_side() -> None:
    real = [result("bsp", seed, duration_s=40.0 + 20 * seed, staleness_counts={0: 4}) for seed in range(2)]
    simulated = [result("bsp", duration_s=55.0, staleness_counts={0: 1, 1: 1})]
    (pair,) = agreements([*real, result("asp", status="failed")], [*simulated, result("asp")])
    assert (pair.policy, pair.real_s, pair.simulated_s) == ("bsp", 50.0, 55.0)
    assert pair.error == pytest.approx(0.1)
    assert (pair.real_staleness, pair.simulated_staleness, pair.apart) == (0.0, 0.5, 0.5)
    assert rows([pair]) == [["bsp", "50.000", "55.000", "+10.0%", "0.00", "0.50", "0.50"]]


def test_what_has_no_gradients_has_no_staleness() -> None:
    runs = [result("local:8", staleness_counts={})]
    assert rows(agreements(runs, runs))[0][-3:] == ["-", "-", "-"]


def test_distributions_are_as_far_apart_as_their_mass_must_be_moved() -> None:
    assert distance({1: 2}, {1: 7}) == 0.0
    assert distance({0: 1}, {1: 3}) == 1.0


def test_the_order_counts_where_there_is_one() -> None:
    right = [Agreement("bsp", 4.0, 4.1), Agreement("asp", 2.0, 2.1), Agreement("ssp:3", 2.05, 2.0)]
    assert misplaced(right) == []
    assert verdict(right) == "largest error +5.0% (asp); the order is right (times within 5% are ties)"
    wrong = [Agreement("bsp", 4.0, 2.0), Agreement("asp", 2.0, 2.1)]
    assert "the wrong way round: asp before bsp" in verdict(wrong)
    assert verdict([]) == "no policy has finished in the simulator and the runtime"
