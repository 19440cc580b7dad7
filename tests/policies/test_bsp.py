from polyrhythm.core import Alarm, Joined, Left, Proceed, Report, Sync
from polyrhythm.policies import BSP
from tests.policies.conftest import Drive


def test_round(drive: Drive) -> None:
    everyone = (Sync((0, 1, 2)), Proceed((0, 1, 2)))
    assert drive(BSP(), 3, Report(2, 1, 1.0), Report(0, 1, 2.0), Alarm(2.5), Report(1, 1, 3.0)) == [
        (),
        (),
        (),
        everyone,
    ]


def test_death_of_the_last_opens_the_barrier(drive: Drive) -> None:
    assert drive(BSP(), 2, Report(0, 1, 1.0), Left(1, 2.0, 0)) == [(), (Sync((0,)), Proceed((0,)))]


def test_death_at_the_barrier_takes_the_gradient_out(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Left(0, 2.0, 1), Report(1, 1, 3.0)]
    assert drive(BSP(), 2, *events) == [(), (), (Sync((1,)), Proceed((1,)))]


def test_newcomer_takes_part_in_the_round(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Joined((7,), 1.5, 0), Report(1, 1, 2.0), Report(7, 1, 3.0)]
    assert drive(BSP(), 2, *events)[1:] == [(Proceed((7,)),), (), (Sync((0, 1, 7)), Proceed((0, 1, 7)))]


def test_nobody_is_left(drive: Drive) -> None:
    assert drive(BSP(), 1, Left(0, 1.0, 0)) == [()]
