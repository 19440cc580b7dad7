import pytest

from polyrhythm.core import Ledger, Proceed, Report, Sync
from polyrhythm.telemetry import Meter, RunResult
from polyrhythm.telemetry.result import EvalPoint


def blank() -> RunResult:
    return RunResult(scenario="s", policy="p", seed=0, workers=2, batch_size=4)


def report(worker: int, step_s: float, transfer_s: float = 0.0, staleness: int = 0) -> Report:
    return Report(worker, 1, 0.0, 4, step_s, transfer_s, staleness)


def test_time() -> None:
    meter = Meter()
    meter.join((0, 1), 0.0)
    meter.report(report(0, 3.0, 1.0), "gradients")
    meter.report(report(0, 2.0), "gradients")
    meter.report(report(1, 1.0), "gradients")
    meter.busy(1, compute_s=0.5, transfer_s=0.25)
    meter.leave(1, 4.0)
    meter.join((1,), 6.0)
    result = meter.finish(blank(), Ledger(), 8.0)
    # Worker 0 is live for 8 s, worker 1 for 4 s and then for 2 s.
    assert result.compute_fraction == pytest.approx(6.5 / 14)
    assert result.transfer_fraction == pytest.approx(1.25 / 14)
    assert result.idle_fraction == pytest.approx(6.25 / 14)
    assert result.idle_fraction_by_worker == pytest.approx({0: 2 / 8, 1: 4.25 / 6})
    assert (result.steps, result.steps_by_worker, result.duration_s) == (3, {0: 2, 1: 1}, 8.0)


def test_staleness_of_what_was_applied() -> None:
    meter = Meter()
    meter.join((0, 1), 0.0)
    for staleness in (1, 5):
        meter.report(report(0, 1.0, staleness=staleness), "gradients")
    meter.report(report(1, 1.0, staleness=9), "gradients")
    meter.cancel(1)
    meter.report(report(1, 1.0, staleness=2), "gradients")
    meter.sync(Sync((0, 1)))
    meter.sync(Sync((0,)))
    result = meter.finish(blank(), Ledger(), 1.0)
    assert result.staleness_counts == {1: 1, 2: 1, 5: 1}
    assert result.staleness_mean == pytest.approx(8 / 3)
    assert (result.staleness_max, result.updates) == (5, 2)


def test_replicas_have_no_staleness() -> None:
    meter = Meter()
    meter.join((0,), 0.0)
    meter.report(report(0, 1.0), "replicas")
    meter.sync(Sync((0,), "parameters"))
    result = meter.finish(blank(), Ledger(), 1.0)
    assert (result.updates, result.staleness_mean, result.staleness_max, result.staleness_counts) == (1, None, None, {})


def test_local_steps_are_those_that_no_exchange_follows() -> None:
    meter = Meter()
    meter.join((0, 1), 0.0)
    for worker in (0, 0, 0, 1):
        meter.report(report(worker, 1.0), "replicas")
    meter.sync(Sync((0,), "parameters", adopters=(0, 1)))
    assert meter.finish(blank(), Ledger(), 4.0).lssr == 0.5


def test_gradients_of_replicas_are_an_exchange_too() -> None:
    meter = Meter()
    meter.join((0, 1), 0.0)
    for worker in (0, 1, 1):
        meter.report(report(worker, 1.0), "replicas")
    meter.sync(Sync((0, 1)))
    result = meter.finish(blank(), Ledger(), 4.0)
    assert result.lssr == pytest.approx(1 / 3)
    assert (result.updates, result.staleness_counts) == (1, {})


def test_computing_time_of_each_worker() -> None:
    meter = Meter()
    meter.join((0, 1), 0.0)
    meter.report(report(0, 3.0), "replicas")
    assert meter.finish(blank(), Ledger(), 4.0).compute_fraction_by_worker == {0: 0.75, 1: 0.0}


def test_contributions_are_the_ledgers() -> None:
    ledger = Ledger()
    ledger.join((0, 1, 2))
    ledger.proceed(Proceed((0, 1, 2)))
    ledger.report(0)
    ledger.sync(Sync((0,)))
    ledger.cancel((1,))
    ledger.leave(2)
    result = Meter().finish(blank(), ledger, 1.0)
    assert (result.gradients_computed, result.gradients_applied, result.gradients_dropped) == (3, 1, 2)
    assert result.dropped_by_reason == {"cancelled": 1, "left": 1}


def test_bytes() -> None:
    meter = Meter(bytes_pushed=3.0, bytes_pulled=4.5)
    meter.bytes_pushed += 2
    result = meter.finish(blank(), Ledger(), 1.0)
    assert (result.bytes_pushed, result.bytes_pulled, result.bytes_total) == (5, 4, 9)


def test_target_is_the_first_evaluation_at_or_above_it() -> None:
    meter = Meter(target=0.8)
    for time_s, accuracy in ((1.0, 0.5), (2.0, 0.8), (3.0, 0.9), (4.0, 0.7)):
        meter.samples += 10
        meter.updates += 1
        meter.evaluated(time_s, accuracy, 1 - accuracy)
    result = meter.finish(blank(), Ledger(), 4.0)
    assert (result.target_accuracy, result.time_to_target_s, result.samples_to_target) == (0.8, 2.0, 20)
    assert (result.final_accuracy, result.best_accuracy) == (0.7, 0.9)
    assert result.final_loss == pytest.approx(0.3)
    assert result.curve[0] == EvalPoint(1.0, 10, 1, 0.5, 0.5)
    assert (result.samples, result.samples_per_s) == (40, 10.0)


def test_what_was_not_measured_is_none() -> None:
    result = Meter(target=0.8).finish(blank(), Ledger(), 0.0)
    assert (result.time_to_target_s, result.final_accuracy, result.final_loss, result.best_accuracy) == (None,) * 4
    assert (result.samples_per_s, result.idle_fraction, result.compute_fraction) == (0.0, 0.0, 0.0)


def test_a_target_that_is_never_reached() -> None:
    meter = Meter(target=0.8)
    meter.evaluated(1.0, 0.7, 0.5)
    assert meter.reached is None
    assert meter.finish(blank(), Ledger(), 1.0).time_to_target_s is None
