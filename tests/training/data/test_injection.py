from collections import Counter

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.errors import PolyrhythmError, ScenarioError
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.injection import Injection, Intake, check_injection, own_batch, received

SHARES = st.floats(0.01, 1.0)


@given(SHARES, SHARES, st.integers(1, 40), st.integers(0, 1000))
def test_so_many_workers_share_so_many_samples(alpha: float, beta: float, workers: int, step: int) -> None:
    injection = Injection(alpha, beta, seed=3)
    sharers = injection.sharers(step, range(workers))
    assert len(set(sharers)) == len(sharers)
    assert alpha * workers - 1e-6 <= len(sharers) < alpha * workers + 1
    rows = injection.rows(step, sharer=1, samples=20)
    assert len(set(rows)) == len(rows) == max(1, round(20 * beta))
    assert set(rows) <= set(range(20))


def test_everybody_makes_the_same_choice_and_each_step_another() -> None:
    one, other = (Injection(0.5, 0.5, seed=4) for _ in range(2))
    assert [one.sharers(s, range(10)) for s in range(20)] == [other.sharers(s, range(10)) for s in range(20)]
    counts = Counter(worker for step in range(400) for worker in one.sharers(step, range(10)))
    assert all(150 < counts[worker] < 250 for worker in range(10))


@pytest.mark.parametrize(("pair", "workers", "own"), [((0.5, 0.5), 10, 9), ((0.75, 0.75), 10, 5), ((0.5, 0.5), 8, 11)])
def test_a_worker_draws_the_fewer_itself(pair: tuple[float, float], workers: int, own: int) -> None:
    assert TrainingConfig(injection=pair).own_batch(workers) == own == own_batch(32, *pair, workers)
    assert TrainingConfig().own_batch(workers) == 32


def test_a_worker_receives_rows_of_the_sharers_mini_batches_but_not_its_own() -> None:
    injection, intake = Injection(0.5, 0.5, seed=0), Intake()
    drawn = {worker: torch.arange(10 * worker, 10 * worker + 6) for worker in range(4)}
    sharers = injection.sharers(7, range(4))
    for worker in range(4):
        parts = received(injection, 7, worker, drawn, intake)
        assert {int(part[0]) // 10 for part in parts} == set(sharers) - {worker}
        assert all(len(part) == 3 for part in parts)
    assert intake.sorted() == {s: {w: 3 for w in range(4) if w != s} for s in sharers}
    assert intake.samples == 2 * 3 * 3


def test_shares_of_a_session_are_checked_too() -> None:
    with pytest.raises(PolyrhythmError, match=r"injection must be two shares in \(0, 1\], .* but got \(0, 1\)"):
        check_injection((0, 1))


@pytest.mark.parametrize("pair", [(0.0, 0.5), (0.5, 1.5)])
def test_a_share_is_one(pair: tuple[float, float]) -> None:
    with pytest.raises(ScenarioError, match=r"training\.injection must be two shares in \(0, 1\] but got"):
        TrainingConfig(injection=pair)
