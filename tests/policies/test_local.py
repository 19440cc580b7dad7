from polyrhythm.core import Alarm, Bounds, Cluster, Joined, Left, Proceed, Report, Sync
from polyrhythm.policies import LocalSGD
from tests.policies.conftest import Drive

AVERAGE = (Sync((0, 1), "parameters"), Proceed((0, 1), "replicas"))


def test_average_every_h_steps(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Report(0, 2, 2.0), Report(1, 1, 3.0), Alarm(3.5), Report(1, 2, 4.0), Report(0, 3, 5.0)]
    assert drive(LocalSGD(2), 2, *events) == [
        (Proceed((0,), "replicas"),),
        (),
        (Proceed((1,), "replicas"),),
        (),
        AVERAGE,
        (Proceed((0,), "replicas"),),
    ]


def test_newcomer_completes_the_round(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Joined((1,), 1.5, 1), Report(0, 2, 2.0), Report(1, 2, 2.5)]
    assert drive(LocalSGD(2), 1, *events)[1:] == [(Proceed((1,), "replicas"),), (), AVERAGE]


def test_newcomers_after_everyone_left_start_a_round(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Left(0, 2.0, 1), Joined((0,), 3.0, 1), Report(0, 2, 4.0), Report(0, 3, 5.0)]
    average = (Sync((0,), "parameters"), Proceed((0,), "replicas"))
    assert drive(LocalSGD(2), 1, *events)[-2:] == [(Proceed((0,), "replicas"),), average]


def test_death_of_the_last_of_a_round_averages(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Report(1, 1, 1.0), Left(2, 2.0, 0)]
    assert drive(LocalSGD(1), 3, *events)[-1] == AVERAGE


def test_bounds() -> None:
    assert LocalSGD(4).bounds(Cluster(workers=2)) == Bounds(lead=4, staleness=0)
