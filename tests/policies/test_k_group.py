from polyrhythm.core import Alarm, Bounds, Cluster, Left, Proceed, Report, Sync
from polyrhythm.policies import KGroup
from tests.policies.conftest import Drive


def test_groups_of_k(drive: Drive) -> None:
    events = [Report(2, 1, 1.0), Alarm(1.5), Report(0, 1, 2.0), Report(1, 1, 3.0)]
    assert drive(KGroup(2), 3, *events) == [(Sync((2,)),), (), (Sync((0,)), Proceed((0, 2))), (Sync((1,)),)]


def test_fewer_workers_than_k(drive: Drive) -> None:
    assert drive(KGroup(2), 2, Report(0, 1, 1.0), Left(1, 2.0, 0))[-1] == (Proceed((0,)),)


def test_bounds() -> None:
    assert KGroup(2).bounds(Cluster(workers=3)) == Bounds()
    assert KGroup(3).bounds(Cluster(workers=3)) == Bounds(lead=1, staleness=2)
