import pytest

from polyrhythm.core import Bounds, Cancel, Cluster, Joined, Left, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import Backup, KSync
from tests.policies.conftest import Drive


def test_first_k_win(drive: Drive) -> None:
    round_end = (Sync((0, 2)), Cancel((1,)), Proceed((0, 1, 2)))
    assert drive(KSync(2), 3, Report(2, 1, 1.0), Report(0, 1, 2.0)) == [(), round_end]


def test_nothing_to_cancel(drive: Drive) -> None:
    assert drive(KSync(2), 2, Report(0, 1, 1.0), Report(1, 1, 2.0))[-1] == (Sync((0, 1)), Proceed((0, 1)))


def test_k_is_at_most_the_live_workers(drive: Drive) -> None:
    assert drive(KSync(3), 3, Report(0, 1, 1.0), Left(2, 1.5, 0), Report(1, 1, 2.0)) == [
        (),
        (),
        (Sync((0, 1)), Proceed((0, 1))),
    ]
    assert drive(KSync(3), 2, Report(0, 1, 1.0), Left(1, 1.5, 0))[-1] == (Sync((0,)), Proceed((0,)))


def test_a_gradient_that_left_does_not_count(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Left(0, 1.5, 1), Report(1, 1, 2.0), Report(2, 1, 3.0)]
    assert drive(KSync(2), 4, *events)[-2:] == [(), (Sync((1, 2)), Cancel((3,)), Proceed((1, 2, 3)))]


def test_backup_counts_live_workers(drive: Drive) -> None:
    events = [Left(3, 0.5, 0), Report(0, 1, 1.0), Joined((5,), 1.5), Report(1, 1, 2.0), Report(5, 1, 3.0)]
    round_end = (Sync((0, 1, 5)), Cancel((2,)), Proceed((0, 1, 2, 5)))
    assert drive(Backup(1), 4, *events)[-2:] == [(), round_end]


def test_bounds() -> None:
    assert KSync(2).bounds(Cluster(workers=3)) == Bounds(staleness=0)
    assert KSync(3).bounds(Cluster(workers=3)) == Backup(0).bounds(Cluster(workers=3)) == Bounds(1, 0)


def test_impossible_parameters() -> None:
    with pytest.raises(SpecError, match="k must be a whole number of at least 1 but got 0"):
        KSync(0)
    with pytest.raises(SpecError, match="b must be a whole number of at least 0 but got -1"):
        Backup(-1)
