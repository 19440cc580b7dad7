import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import Alarm, Bounds, Cluster, Left, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import SSP
from polyrhythm.testing import ClusterScript, ScriptPlayer
from tests.policies.conftest import Drive


def test_parked_beyond_the_bound(drive: Drive) -> None:
    ahead = [Report(0, clock, float(clock)) for clock in (1, 2, 3)]
    goes_on, parked = (Sync((0,)), Proceed((0,))), (Sync((0,)),)
    assert drive(SSP(s=2), 2, *ahead, Alarm(3.5)) == [goes_on, goes_on, parked, ()]
    assert drive(SSP(s=2), 2, *ahead, Report(1, 1, 9.0))[-1] == (Sync((1,)), Proceed((0, 1)))


def test_death_of_the_slowest_releases(drive: Drive) -> None:
    assert drive(SSP(s=0), 2, Report(0, 1, 1.0), Left(1, 2.0, 0))[-1] == (Proceed((0,)),)


def test_death_of_one_of_the_slowest_does_not(drive: Drive) -> None:
    assert drive(SSP(s=0), 3, Report(0, 1, 1.0), Left(1, 2.0, 0))[-1] == ()


@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(s=st.integers(0, 5), slow=st.integers(10, 30))
def test_completed_clocks_differ_by_exactly_s_plus_one(s: int, slow: int) -> None:
    """Ho et al.'s bound on who starts, not on who has completed: the off-by-one of many implementations."""
    leads = set()

    def watch(stage: ScriptPlayer, event: object) -> None:
        clocks = [account.clock for account in stage.ledger.accounts.values()]
        leads.add(max(clocks, default=0) - min(clocks, default=0))

    ScriptPlayer(SSP(s), ClusterScript(workers=2, durations=((1.0,), (float(slow),))), watch=watch).play()
    assert max(leads) == s + 1


def test_staleness_bound_is_reached() -> None:
    """While worker 0 computes its second step, worker 1 goes from s behind it to s + 1 ahead."""
    script = ClusterScript(workers=2, durations=((1.0, 30.0), (3.0, *[1.0] * 9)))
    stage = ScriptPlayer(SSP(s=1), script).play()
    stale = max(event.staleness for event, _ in stage.entries if isinstance(event, Report))
    assert stale == SSP(s=1).bounds(Cluster(workers=2)).staleness == 3


def test_bounds() -> None:
    assert SSP(s=3).bounds(Cluster(workers=4)) == Bounds(lead=4, staleness=21)
    assert SSP(math.inf).bounds(Cluster(workers=4)) == Bounds()


@pytest.mark.parametrize("s", [-1, 0.5, math.nan, -math.inf])
def test_impossible_bound(s: float) -> None:
    with pytest.raises(SpecError, match="s must be a whole number of at least 0, or inf, but got"):
        SSP(s)


def test_a_whole_number_is_told_as_it_was_given() -> None:
    with pytest.raises(SpecError, match=r"or inf, but got -1$"):
        SSP(-1.0)
