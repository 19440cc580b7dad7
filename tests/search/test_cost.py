import math
import random
from itertools import product
from pathlib import Path

import pytest

from polyrhythm.errors import PolyrhythmError
from polyrhythm.search import draws
from polyrhythm.search.cost import Case, Setting, case_of, figures_of, settings
from polyrhythm.search.log import Pool, read_log

RUNS = Path(__file__).parent / "runs.csv"


def even(accuracy: float, time_s: float, runs: int = 5) -> Pool:
    return Pool((accuracy,) * runs, (time_s,) * runs)


NOISELESS = {
    100.0: even(0.92, 100.0),
    50.0: even(0.92, 60.0),
    25.0: even(0.915, 40.0),
    12.0: even(0.85, 30.0),
    6.0: even(0.9, 20.0),
}
NOISY = {
    100.0: Pool((0.90, 0.92, 0.94), (90.0, 100.0, 110.0)),
    50.0: Pool((0.93, 0.91, 0.90), (60.0, 60.0, 60.0)),
    25.0: Pool((0.92, 0.88), (40.0, 44.0)),
}


def test_the_first_failing_candidate_ends_the_search() -> None:
    case = case_of("a", NOISELESS, None, beta=0.01)
    assert [(c.percent, c.logged_percent, c.passes) for c in case.candidates] == [
        (50.0, 50.0, True),
        (25.0, 25.0, True),
        (12.5, 12.0, False),
        (6.25, 6.0, False),
        (3.125, None, False),
    ]
    assert case.answer == 25.0


def test_without_noise_the_figures_are_those_of_the_definitions() -> None:
    figures = figures_of(case_of("a", NOISELESS, None, 0.01), Setting(False, 5, 5), replacement=False)
    cost = (5 * 100 + 5 * (60 + 40 + 30)) / 100
    assert figures.cost == pytest.approx(cost)
    assert figures.amortised == pytest.approx(cost / (1 - 0.4))
    assert figures.effective == pytest.approx((5 + 5 * 2) / cost)
    assert (figures.success, figures.too_early, figures.too_late) == (1.0, 0.0, 0.0)
    assert figures.whole_pools


def test_a_recurring_job_knows_its_target() -> None:
    figures = figures_of(case_of("a", NOISELESS, None, 0.01), Setting(True, 0, 2), replacement=True)
    assert figures.cost == pytest.approx(2 * (60 + 40 + 30) / 100)
    assert not figures.whole_pools


def simulated(case: Case, setting: Setting, rng: random.Random) -> tuple[float, float]:
    """Cost and answer of one search, drawn with replacement, step by step."""
    target = sum(rng.choices(case.bsp.accuracies, k=setting.bsp_runs)) / setting.bsp_runs
    cost, answer = float(setting.bsp_runs), 100.0
    for candidate in case.candidates:
        if not candidate.pool:
            break
        chosen = rng.choices(range(len(candidate.pool)), k=setting.runs)
        cost += sum(candidate.pool.times_s[i] for i in chosen) / case.bsp.time_s
        if sum(candidate.pool.accuracies[i] for i in chosen) / setting.runs < target - case.beta - 1e-12:
            break
        answer = candidate.percent
    return cost, answer


@pytest.mark.parametrize(("bsp_runs", "runs"), [(1, 1), (2, 3), (3, 2)])
def test_the_figures_are_those_of_searches_carried_out(bsp_runs: int, runs: int) -> None:
    case, setting, rng = case_of("a", NOISY, None, 0.01), Setting(False, bsp_runs, runs), random.Random(0)
    outcomes = [simulated(case, setting, rng) for _ in range(20_000)]
    figures = figures_of(case, setting, replacement=True)
    answers = [answer for _, answer in outcomes]
    assert case.answer == 50.0
    assert figures.cost == pytest.approx(sum(cost for cost, _ in outcomes) / len(outcomes), rel=0.01)
    assert figures.success == pytest.approx(answers.count(50.0) / len(answers), abs=0.015)
    assert figures.too_late == pytest.approx(answers.count(100.0) / len(answers), abs=0.015)
    assert figures.too_early == pytest.approx(answers.count(25.0) / len(answers), abs=0.015)
    assert figures.time_regret == pytest.approx(figures.too_late * 0.4)
    assert figures.accuracy_regret == pytest.approx(figures.too_early * (case.candidates[0].pool.accuracy - 0.90))


def test_sampled_figures_come_near_the_exact_ones_and_say_their_error(monkeypatch: pytest.MonkeyPatch) -> None:
    case, setting = case_of("a", NOISY, None, 0.01), Setting(False, 2, 2)
    exact = figures_of(case, setting, replacement=True)
    monkeypatch.setattr(draws, "ENUMERABLE", 1)
    sampled = figures_of(case, setting, replacement=True, draws=5_000)
    assert exact.std_error == 0.0 < sampled.std_error < 0.01
    assert sampled.success == pytest.approx(exact.success, abs=4 * sampled.std_error)
    assert sampled.cost == pytest.approx(exact.cost, rel=0.02)


@pytest.mark.parametrize("replacement", [False, True])
def test_outcomes_add_up(replacement: bool) -> None:
    case = case_of("a", read_log(RUNS).setups["small"], None, 0.01)
    for setting, seed in product(settings(4), range(2)):
        figures = figures_of(case, setting, replacement, seed=seed)
        assert figures.success + figures.too_early + figures.too_late == pytest.approx(1.0)
        assert min(figures.too_early, figures.too_late, figures.time_regret, figures.accuracy_regret) >= 0


def test_a_search_that_finds_nothing_is_never_paid_for() -> None:
    pools = {100.0: even(0.9, 100.0), 50.0: even(0.1, 50.0)}
    figures = figures_of(case_of("a", pools, None, 0.01), Setting(False, 1, 1), replacement=False)
    assert math.isinf(figures.amortised)
    assert figures.effective == pytest.approx(1 / 1.5)


def test_candidates_may_be_named() -> None:
    case = case_of("a", NOISELESS, [50.0, 6.0], 0.02)
    assert [(c.percent, c.passes) for c in case.candidates] == [(50.0, True), (6.0, True)]


@pytest.mark.parametrize(
    ("pools", "message"),
    [
        ({1.0: even(0.9, 1.0), 0.5: even(0.9, 1.0)}, "no runs with bsp_percent = 100.*only 0.5, 1"),
        ({100.0: even(0.9, 0.0), 50.0: even(0.9, 1.0)}, "train_time_s = 0"),
        ({100.0: even(0.9, 1.0), 75.0: even(0.9, 1.0)}, "no runs of a candidate, only at 75, 100 %"),
    ],
)
def test_a_setup_that_cannot_be_analysed_says_why(pools: dict[float, Pool], message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        case_of("a", pools, None, 0.01)
