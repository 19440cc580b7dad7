import msgspec
import pytest

from polyrhythm.core import Cancel, Joined, Ledger, Left, Proceed, Report, Sync
from polyrhythm.telemetry import Figures, Gauge, Mark, RunResult

BLANK = RunResult(scenario="", policy="asp", seed=0, where="local", workers=2, batch_size=8)
BOTH = (0, 1)


def measured(gauge: Gauge, time_s: float = 10.0) -> RunResult:
    return gauge.figures(msgspec.structs.replace(BLANK), Ledger(), Mark(time_s, 0, gauge.meter.updates)).result


def coordinated() -> Gauge:
    gauge = Gauge()
    gauge.begin_phase(synchronous=False, message_bytes=100)
    gauge.record(Joined(BOTH, 0.0), (Proceed(BOTH),))
    return gauge


def test_gradients_that_arrive_one_by_one() -> None:
    gauge = coordinated()
    gauge.record(Report(0, 1, 2.0, 8, step_s=1.5, transfer_s=0.25), (Sync((0,)), Proceed((0,))))
    gauge.record(Report(1, 1, 4.0, 8, step_s=4.0, staleness=1), (Sync((1,)), Proceed((1,))))
    result = measured(gauge)
    assert (result.updates, result.steps_by_worker) == (2, {0: 1, 1: 1})
    assert result.staleness_counts == {0: 1, 1: 1}
    assert (result.bytes_pushed, result.bytes_pulled) == (200, 400)
    assert (result.compute_fraction, result.transfer_fraction) == (5.5 / 20, 0.25 / 20)


def test_a_worker_reads_nothing_if_nothing_has_changed() -> None:
    gauge = coordinated()
    gauge.record(Report(0, 1, 2.0), (Proceed((0,)),))
    assert measured(gauge).bytes_pulled == 200


def test_in_lockstep_the_bytes_are_those_of_a_ring() -> None:
    gauge = Gauge()
    gauge.begin_phase(synchronous=True, message_bytes=100)
    gauge.record(Joined((0, 1, 2), 0.0), (Proceed((0, 1, 2)),))
    for worker in (0, 1):
        gauge.record(Report(worker, 1, 1.0), ())
    gauge.record(Report(2, 1, 1.0), (Sync((0, 1, 2)), Proceed((0, 1, 2))))
    result = measured(gauge)
    assert result.bytes_total == 3 * 100 * 2 * 2 / 3 * 1
    assert result.bytes_pushed == result.bytes_pulled


@pytest.mark.parametrize(
    ("sync", "part"),
    [(Sync((1,), "parameters", adopters=(0, 1, 2)), 1.0), (Sync((0, 1, 2), "deltas", fragment=(1, 4)), 0.25)],
)
@pytest.mark.parametrize(("push_bytes", "ring"), [(100, 2 * 100 * 2), (20, 3 * 20 * 2)])
def test_in_a_ring_all_members_hand_on_their_part(sync: Sync, part: float, push_bytes: int, ring: int) -> None:
    """What is compressed cannot be summed on the way: everyone's goes to all others."""
    gauge = Gauge()
    gauge.begin_phase(synchronous=True, message_bytes=100, push_bytes=push_bytes)
    gauge.record(Joined((0, 1, 2), 0.0), (Proceed((0, 1, 2), "replicas"),))
    gauge.record(Report(0, 1, 1.0), (sync, Proceed((0,), "replicas")))
    assert measured(gauge).bytes_total == part * ring


@pytest.mark.parametrize(
    ("sync", "messages"),
    [
        (Sync((1,), "parameters", adopters=(0, 1, 2)), (1, 3)),
        (Sync((0, 1, 2), "deltas", fragment=(1, 4)), (3 / 4, 3 / 4)),
        (Sync((0, 1, 2), "gradients"), (2, 2)),
    ],
)
def test_in_a_star_contributors_send_and_all_members_receive(sync: Sync, messages: tuple[float, float]) -> None:
    """Gradients go round in any case."""
    gauge = Gauge()
    gauge.begin_phase(synchronous=True, message_bytes=100, star=True)
    gauge.record(Joined((0, 1, 2), 0.0), (Proceed((0, 1, 2), "replicas"),))
    gauge.record(Report(0, 1, 1.0), (sync, Proceed((0,), "replicas")))
    result = measured(gauge)
    assert (result.bytes_pushed, result.bytes_pulled) == (100 * messages[0], 100 * messages[1])


def test_who_has_finished_the_epoch_waits_and_is_still_there() -> None:
    gauge = coordinated()
    gauge.record(Report(0, 1, 2.0, step_s=2.0), (Sync((0,)), Proceed((0,))))
    gauge.record(Left(0, 2.0, 1, "finished"), ())
    gauge.record(Report(1, 1, 6.0, step_s=6.0), (Sync((1,)), Proceed((1,))))
    gauge.record(Left(1, 6.0, 1, "finished"), ())
    gauge.end_epoch(Mark(6.0, 16, 2))
    gauge.record(Joined(BOTH, 7.0), (Proceed(BOTH),))
    result = measured(gauge)
    assert (result.duration_s, result.samples, result.updates) == (6.0, 16, 2)
    assert result.idle_fraction_by_worker == {0: 4 / 6, 1: 0.0}


def test_what_a_finished_worker_had_pending_is_one_update() -> None:
    gauge = coordinated()
    gauge.record(Report(0, 1, 2.0, staleness=3), ())
    gauge.record(Left(0, 2.0, 1, "finished"), ())
    assert measured(gauge).staleness_counts == {3: 1}
    assert gauge.meter.updates == 1


def test_computing_in_vain_is_computing() -> None:
    gauge = coordinated()
    gauge.record(Report(0, 1, 2.0, step_s=2.0), (Sync((0,)), Cancel((1,)), Proceed(BOTH)))
    gauge.record(Left(1, 5.0, 0, "died"), ())
    result = measured(gauge)
    assert result.compute_fraction == (2.0 + 2.0 + 3.0) / (10.0 + 5.0)


def test_a_worker_that_dies_between_two_epochs_is_not_idle_for_ever() -> None:
    gauge = coordinated()
    for worker in BOTH:
        gauge.record(Report(worker, 1, 1.0, step_s=1.0), (Sync((worker,)), Proceed((worker,))))
        gauge.record(Left(worker, 1.0, 1, "finished"), ())
    gauge.lost(1, 2.0)
    gauge.lost(1, 3.0)
    assert measured(gauge).idle_fraction_by_worker == {0: 0.9, 1: 0.5}


def test_a_new_phase_owes_nothing_to_the_last() -> None:
    gauge = coordinated()
    gauge.record(Report(0, 1, 2.0, staleness=7), ())
    gauge.begin_phase(synchronous=False, message_bytes=100)
    gauge.record(Joined(BOTH, 3.0, 1), (Proceed(BOTH),))
    gauge.record(Report(0, 2, 4.0), (Sync((0,)),))
    assert measured(gauge).staleness_counts == {0: 1}


def test_figures_survive_a_file() -> None:
    gauge = coordinated()
    gauge.end_epoch(Mark(1.0, 8, 1))
    figures = gauge.figures(BLANK, Ledger(), Mark(1.0, 8, 1))
    assert msgspec.json.decode(msgspec.json.encode(figures), type=Figures) == figures
