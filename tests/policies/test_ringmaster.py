import pytest

from polyrhythm.core import Alarm, Bounds, Cancel, Cluster, Left, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import Ringmaster
from tests.policies.conftest import Drive


def applied(worker: int) -> tuple[Sync, Proceed]:
    return Sync((worker,)), Proceed((worker,))


def test_a_gradient_that_is_too_stale_is_dropped_and_its_worker_goes_on(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Report(0, 2, 2.0), Alarm(2.5), Report(1, 1, 3.0, staleness=2), Report(1, 2, 4.0)]
    dropped = (Cancel((1,)), Proceed((1,)))
    assert drive(Ringmaster(1), 2, *events) == [applied(0), applied(0), (), dropped, applied(1)]


def test_the_limit_itself_is_applied(drive: Drive) -> None:
    assert drive(Ringmaster(2), 2, Report(1, 1, 3.0, staleness=2)) == [applied(1)]


def test_a_step_that_comes_too_late_is_abandoned(drive: Drive) -> None:
    events = [Report(0, 1, 1.0), Report(0, 2, 2.0), Report(0, 3, 3.0)]
    abandoned = (Sync((0,)), Cancel((1,)), Proceed((0, 1)))
    assert drive(Ringmaster(1, stop=True), 2, *events) == [applied(0), abandoned, applied(0)]


def test_who_has_left_is_not_abandoned(drive: Drive) -> None:
    events = [Left(1, 0.5, 0), Report(0, 1, 1.0), Report(0, 2, 2.0)]
    assert drive(Ringmaster(0, stop=True), 2, *events) == [(), applied(0), applied(0)]


def test_bounds() -> None:
    assert Ringmaster(3).bounds(Cluster(workers=4)) == Bounds()
    assert Ringmaster(3, stop=True).bounds(Cluster(workers=4)) == Bounds(staleness=3)


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(SpecError, match="r must be a whole number of at least 0 but got -1"):
        Ringmaster(-1)
