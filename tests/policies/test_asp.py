from polyrhythm.core import Alarm, Joined, Left, Proceed, Report, Sync
from polyrhythm.policies import ASP
from tests.policies.conftest import Drive


def test_nobody_waits(drive: Drive) -> None:
    events = [Report(1, 1, 1.0), Joined((2,), 1.5), Left(0, 2.0, 0), Alarm(3.0)]
    assert drive(ASP(), 2, *events) == [(Sync((1,)), Proceed((1,))), (Proceed((2,)),), (), ()]
