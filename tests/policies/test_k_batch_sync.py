from polyrhythm.core import Alarm, Cancel, Joined, Left, Proceed, Report, Sync
from polyrhythm.policies import KBatchSync
from tests.policies.conftest import Drive


def test_first_k_batches_from_anyone(drive: Drive) -> None:
    events = [Report(1, 1, 1.0), Report(1, 2, 2.0), Alarm(2.5), Report(0, 1, 3.0)]
    draws = (Proceed((1,)),)
    assert drive(KBatchSync(3), 3, *events) == [
        draws,
        draws,
        (),
        (Sync((0, 1, 1)), Cancel((1, 2)), Proceed((0, 1, 2))),
    ]


def test_batches_that_left_do_not_count(drive: Drive) -> None:
    events = [Report(1, 1, 1.0), Report(1, 2, 2.0), Left(1, 2.5, 2), Report(0, 1, 3.0)]
    assert drive(KBatchSync(3), 4, *events)[-2:] == [(), (Proceed((0,)),)]


def test_fewer_workers_than_k_end_the_round(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Report(0, 2, 2.0), Left(2, 2.5, 0)]
    assert drive(KBatchSync(3), 3, *events)[-1] == (Sync((0, 0)), Cancel((0, 1)), Proceed((0, 1)))


def test_newcomer_counts(drive: Drive) -> None:
    events = [Joined((4,), 0.5), Report(4, 1, 1.0), Report(4, 2, 2.0)]
    assert drive(KBatchSync(2), 1, *events)[-1] == (Sync((4, 4)), Cancel((0,)), Proceed((0, 4)))
