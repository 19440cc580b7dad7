from polyrhythm.core import Bounds, Cluster, Left, Proceed, Report, Sync
from polyrhythm.policies import KAsync
from tests.policies.conftest import Drive


def test_only_the_k_read_the_new_version(drive: Drive) -> None:
    assert drive(KAsync(2), 3, Report(2, 1, 1.0), Report(0, 1, 2.0)) == [(), (Sync((0, 2)), Proceed((0, 2)))]


def test_fewer_workers_than_k(drive: Drive) -> None:
    assert drive(KAsync(2), 2, Report(0, 1, 1.0), Left(1, 2.0, 0))[-1] == (Sync((0,)), Proceed((0,)))


def test_bounds() -> None:
    assert KAsync(2).bounds(Cluster(workers=3)) == Bounds()
    assert KAsync(3).bounds(Cluster(workers=3)) == Bounds(lead=1, staleness=0)
