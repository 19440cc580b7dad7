import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from polyrhythm.core import Cluster, Event, Joined, Left, LeftReason, Proceed, Report, Sync
from polyrhythm.errors import PolyrhythmError, SpecError
from polyrhythm.policies import SelSync, parse_policy
from polyrhythm.policies.selsync import Signal, relative_change
from polyrhythm.testing import ClusterScript, ScriptPlayer
from tests.policies.conftest import Drive

SIGMA = 0.5
"""Standard deviation of the logarithm of a squared norm."""

GO_ON = (Proceed((0, 1), "replicas"),)
AVERAGE = (Sync((0, 1), "parameters"), *GO_ON)


def steps(*norms: tuple[float, float]) -> list[Report]:
    """Both workers report each step, worker 0 first."""
    return [
        Report(worker, clock, float(clock), grad_sq_norm=norm)
        for clock, pair in enumerate(norms, 1)
        for worker, norm in enumerate(pair)
    ]


def test_the_signal_is_the_change_of_the_mean_of_squared_norms() -> None:
    signal = Signal()
    changes = []
    for norm in (4.0, 7.0, 6.0, 6.0):
        signal = signal.after(norm, window=25, factor=0.5)
        changes.append(signal.change)
    assert changes == [math.inf, 0.5, 0.0, 0.0]


@given(
    norms=st.lists(st.floats(0.01, 100), min_size=1, max_size=12),
    window=st.integers(2, 6),
    factor=st.floats(0.01, 1),
)
def test_the_mean_is_that_of_the_window_with_weights_that_sum_to_one(
    norms: list[float], window: int, factor: float
) -> None:
    signal = Signal()
    for norm in norms:
        signal = signal.after(norm, window, factor)
    newest_first = norms[::-1][:window]
    weights = [(1 - factor) ** age for age in range(len(newest_first))]
    assert signal.mean == pytest.approx(
        sum(weight * norm for weight, norm in zip(weights, newest_first, strict=True)) / sum(weights)
    )


def test_what_leaves_the_window_counts_least() -> None:
    """With two workers' factor, 25 weights fall from 1 to 0.62: no norm counts much, the oldest least."""
    signal = Signal()
    for norm in (*[1.0] * 24, 2.0):
        signal = signal.after(norm, window=25, factor=0.02)
    assert signal.change < 0.06
    for norm in [1.0] * 25:
        signal = signal.after(norm, window=25, factor=0.02)
    assert signal.mean == pytest.approx(1.0)
    assert signal.change < 0.04


@pytest.mark.parametrize(("workers", "least", "most"), [(2, 0.99, 1), (4, 0.99, 1), (8, 0.99, 1), (16, 0.79, 0.83)])
def test_what_a_threshold_means_by_the_number_of_workers(workers: int, least: float, most: float) -> None:
    """LSSR at delta 0.3 with independent log-normal norms: the largest Delta of the workers decides."""
    stream, signals, local = random.Random(0), [Signal()] * workers, 0
    factor = SelSync().init(Cluster(workers)).factor
    for _ in range(6_000):
        signals = [signal.after(stream.lognormvariate(0.0, SIGMA), 25, factor) for signal in signals]
        local += max(signal.change for signal in signals) < 0.3
    assert least <= local / 6_000 <= most


def test_a_change_from_nothing() -> None:
    assert (relative_change(1.0, 0.0), relative_change(0.0, 0.0)) == (math.inf, 0.0)
    assert relative_change(math.nan, 1.0) != 0


def test_any_workers_flag_synchronises_and_the_first_step_always_does(drive: Drive) -> None:
    policy = SelSync(delta=0.3, factor=0.5)
    decided = drive(policy, 2, *steps((4.0, 4.0), (4.0, 4.0), (4.0, 8.0), (4.0, 6.0)))
    assert decided[::2] == [()] * 4
    assert decided[1::2] == [AVERAGE, GO_ON, AVERAGE, GO_ON]


def test_the_threshold_itself_fires(drive: Drive) -> None:
    decided = drive(SelSync(delta=0.5, factor=0.5), 2, *steps((4.0, 4.0), (4.0, 7.0)))
    assert decided[-1] == AVERAGE


def test_a_death_completes_the_step_without_its_flag(drive: Drive) -> None:
    events = [*steps((4.0, 4.0)), Report(0, 2, 2.0, grad_sq_norm=4.0), Left(1, 2.5, 1)]
    assert drive(SelSync(delta=0.3), 2, *events)[-1] == (Proceed((0,), "replicas"),)


@pytest.mark.parametrize(("reason", "fires"), [("finished", False), ("died", True)])
def test_an_epochs_end_is_no_change_of_the_gradient(drive: Drive, reason: LeftReason, fires: bool) -> None:
    before = [Report(0, clock, float(clock), grad_sq_norm=4.0) for clock in (1, 2, 3)]
    again = [Left(0, 4.0, 3, reason), Joined((0,), 5.0), Report(0, 4, 6.0, grad_sq_norm=4.0)]
    decisions = drive(SelSync(0.3), 1, *before, *again)[-1]
    assert any(isinstance(decision, Sync) for decision in decisions) == fires


def test_who_does_not_come_back_with_the_others_is_forgotten() -> None:
    policy = SelSync(0.3)
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    events: list[Event] = [Report(worker, 1, 1.0, grad_sq_norm=4.0) for worker in (0, 1)]
    for event in (*events, *(Left(worker, 2.0, 1, "finished") for worker in (0, 1)), Joined((0,), 3.0)):
        state, _ = policy.decide(state, event)
    assert list(state.signals) == [0]


def test_the_factor_is_a_hundredth_of_the_workers() -> None:
    assert [SelSync().init(Cluster(workers)).factor for workers in (4, 16, 300)] == [0.04, 0.16, 1.0]
    assert SelSync(factor=0.2).init(Cluster(4)).factor == 0.2


def test_gradients_are_aggregated_on_replicas(drive: Drive) -> None:
    decided = drive(SelSync(delta=0, aggregate="gradients"), 2, *steps((4.0, 4.0)))
    assert decided[-1] == (Sync((0, 1)), *GO_ON)


@pytest.mark.parametrize("lssr", [0.3, 0.8, 0.95])
def test_a_share_of_local_steps_is_held(lssr: float) -> None:
    """Norms that move at random; a step counts for the cluster."""
    stage = ScriptPlayer(SelSync(lssr=lssr), ClusterScript(workers=3, total_samples=6_000, dataset_samples=6_000))
    syncs = sum(isinstance(d, Sync) for _, decided in stage.play().entries for d in decided)
    assert syncs / 2_000 == pytest.approx(1 - lssr, abs=0.05)


def test_a_quantile_of_all_workers_is_held() -> None:
    policy = SelSync(quantile=0.5, factor=0.5)
    state, _ = policy.decide(policy.init(Cluster(1)), Joined((0,), 0.0))
    for clock in range(1, 3_000):
        state, _ = policy.decide(state, Report(0, clock, 0.0, grad_sq_norm=1.0 + clock * 7 % 10))
    assert policy.figures(state)["delta"] == pytest.approx(policy.figures(state)["delta_p50"], rel=0.3)


def test_figures() -> None:
    policy = SelSync(delta=0.3, factor=0.5)
    state, _ = policy.decide(policy.init(Cluster(1)), Joined((0,), 0.0))
    assert policy.figures(state) == {"delta": 0.3}
    for clock in range(1, 101):
        state, _ = policy.decide(state, Report(0, clock, 0.0, grad_sq_norm=1.0))
    assert policy.figures(state) == {"delta": 0.3, "lssr": 0.99}


def test_without_norms_only_a_share_of_local_steps_can_be_held(drive: Drive) -> None:
    with pytest.raises(PolyrhythmError, match="this run trains nothing; train something, or give the share"):
        drive(SelSync(0.3), 1, Report(0, 1, 1.0))
    assert drive(SelSync(lssr=0.8), 1, Report(0, 1, 1.0))[0][-1] == Proceed((0,), "replicas")


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("selsync:-1", "delta must be at least 0 but got -1"),
        ("selsync:nan", "delta must be at least 0 but got nan"),
        ("selsync:window=1", "window must be a whole number of at least 2 but got 1"),
        ("selsync:factor=0", "factor must be above 0 and at most 1 but got 0"),
        ("selsync:aggregate=models", "aggregate must be parameters or gradients but got 'models'"),
        ("selsync:lssr=1", r"lssr must be in \(0, 1\) but got 1"),
        ("selsync:lssr=0.5,quantile=0.5", "give one of them"),
        ("selsync:inf,lssr=0.5", "delta must be positive and finite to start a target from but got inf"),
    ],
)
def test_impossible_parameters(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_policy(spec)
