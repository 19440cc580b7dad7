from polyrhythm.core import Alarm, Left, Proceed, Report, Sync
from polyrhythm.policies import KBatchAsync
from tests.policies.conftest import Drive


def test_nobody_waits(drive: Drive) -> None:
    events = [Report(1, 1, 1.0), Report(1, 2, 2.0), Alarm(2.5), Report(0, 1, 3.0), Report(0, 2, 4.0)]
    go_on = (Proceed((1,)),)
    assert drive(KBatchAsync(3), 3, *events) == [
        go_on,
        go_on,
        (),
        (Sync((0, 1, 1)), Proceed((0,))),
        (Proceed((0,)),),
    ]


def test_batches_that_left_do_not_count(drive: Drive) -> None:
    events = [Report(1, 1, 1.0), Left(1, 1.5, 1), Report(0, 1, 2.0)]
    assert drive(KBatchAsync(2), 3, *events)[-1] == (Proceed((0,)),)


def test_fewer_workers_than_k_update_at_once(drive: Drive) -> None:
    assert drive(KBatchAsync(3), 3, Report(0, 1, 1.0), Report(0, 2, 2.0), Left(2, 3.0, 0))[-1] == (Sync((0, 0)),)
