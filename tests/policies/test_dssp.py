import pytest

from polyrhythm.core import Bounds, Cluster, Event, Joined, Left, LeftReason, Proceed, Report, Sync
from polyrhythm.errors import SpecError
from polyrhythm.policies import DSSP
from polyrhythm.policies.dssp import PushPace, best_grant, wait_after
from polyrhythm.testing import ClusterScript, ScriptPlayer
from tests.policies.conftest import Drive

GOES_ON, PARKED = (Sync((0,)), Proceed((0,))), (Sync((0,)),)


def test_predicted_wait() -> None:
    """The slowest pushes at 6, 13, 20, ...; the fastest at 10, 12, 14, ..."""
    waits = [wait_after(r, last_s=10.0, interval_s=2.0, slowest_last_s=6.0, slowest_interval_s=7.0) for r in range(6)]
    assert waits == [3.0, 1.0, 6.0, 4.0, 2.0, 0.0]


def test_push_at_the_same_time_as_the_slowest_waits_for_its_next_one() -> None:
    assert wait_after(0, last_s=6.0, interval_s=2.0, slowest_last_s=6.0, slowest_interval_s=7.0) == 7.0


def test_overdue_slowest_is_expected_at_its_next_beat() -> None:
    assert wait_after(0, last_s=21.0, interval_s=2.0, slowest_last_s=6.0, slowest_interval_s=7.0) == 6.0


FAST, SLOW = PushPace(10.0, 2.0, 10.0), PushPace(6.0, 7.0, 6.0)


@pytest.mark.parametrize(("limit", "grant"), [(0, 0), (1, 1), (4, 1), (5, 5)])
def test_best_grant(limit: int, grant: int) -> None:
    assert best_grant(limit, FAST, SLOW) == grant


def test_ties_go_to_fewer_steps() -> None:
    assert best_grant(9, FAST, SLOW._replace(interval_s=2.0)) == 0


@pytest.mark.parametrize(
    ("fast_s", "slow_s"), [(None, 7.0), (2.0, None), (2.0, 0.0)], ids=["one push", "slowest: one push", "no interval"]
)
def test_no_grant_without_a_prediction(fast_s: float | None, slow_s: float | None) -> None:
    assert best_grant(5, FAST._replace(interval_s=fast_s), SLOW._replace(interval_s=slow_s)) == 0


def parked_s(policy: DSSP, script: ClusterScript) -> list[float]:
    """When worker 0 was parked."""
    entries = ScriptPlayer(policy, script).play().entries
    return [event.time_s for event, decided in entries if isinstance(event, Report) and decided == PARKED]


def test_grants_on_a_steady_beat() -> None:
    """Worker 1 pushes at 7, 14, 21, ...; worker 0 every 2 s while it runs.

    It is three ahead at 6, at 9 (no second push of worker 1 yet), and at 16, when the predicted waits are 5, 3, 1 and 6
    after 0, 1, 2 and 3 steps. Two steps later it is parked until worker 1 has made up for them at 35.
    """
    script = ClusterScript(workers=2, durations=((2.0,), (7.0,)), total_samples=13, dataset_samples=13)
    assert parked_s(DSSP(2, 5), script) == [6.0, 9.0, 20.0]
    assert parked_s(DSSP(2, 3), script) == [6.0, 9.0, 18.0, 32.0]
    assert parked_s(DSSP(2, 2), script) == [6.0, 9.0, 16.0, 23.0, 30.0]


def test_parked_time_is_no_part_of_the_pace() -> None:
    """Parked from 6 to 7 and from 9 to 14, worker 0 is still known to need 2 s for a step."""
    policy = DSSP(2, 5)
    stage = ScriptPlayer(
        policy, ClusterScript(workers=2, durations=((2.0,), (7.0,)), total_samples=9, dataset_samples=9)
    ).play()
    state = policy.init(stage.cluster)
    for event, _ in stage.entries:
        if event.time_s <= 16.0:
            state, _ = policy.decide(state, event)
    assert state.paces.get(0) == PushPace(last_s=16.0, interval_s=2.0, started_s=16.0, granted=1)


def beats(worker: int, every_s: float, first: int, last: int) -> list[Event]:
    """Steps `first` to `last` of a worker that pushes at a steady beat."""
    return [Report(worker, clock, clock * every_s) for clock in range(first, last + 1)]


def test_only_a_fastest_worker_is_asked(drive: Drive) -> None:
    pushes = [*beats(2, 7.0, 1, 2), *beats(1, 1.0, 1, 6), *beats(0, 2.0, 1, 5)]
    assert drive(DSSP(2, 9), 3, *pushes)[-1] == PARKED


def test_death_of_the_slowest_releases(drive: Drive) -> None:
    assert drive(DSSP(0, 2), 2, Report(0, 1, 1.0), Left(1, 2.0, 0))[-1] == (Proceed((0,)),)


def test_less_waiting_than_ssp_on_an_uneven_cluster() -> None:
    script = ClusterScript(workers=2, durations=((1.0,), (7.0,)), total_samples=60, dataset_samples=60)
    ends = {policy: ScriptPlayer(policy, script).play().now_s for policy in (DSSP(1, 1), DSSP(1, 6))}
    assert ends[DSSP(1, 6)] < ends[DSSP(1, 1)]


def test_bounds() -> None:
    assert DSSP(3, 15).bounds(Cluster(workers=3)) == Bounds(lead=16, staleness=62)


def test_impossible_range() -> None:
    with pytest.raises(SpecError, match="s_high must be at least s_low=4 but got 3"):
        DSSP(4, 3)


@pytest.mark.parametrize(("reason", "granted"), [("finished", True), ("died", False)])
def test_paces_outlast_an_epoch_and_its_grants_do_not(drive: Drive, reason: LeftReason, granted: bool) -> None:
    """Steps of 2.5 and 7 s; the next epoch begins at 100 s. Worker 0 is three ahead at 107.5, 6.5 s before the other
    is expected, and after two steps more 1.5 s.
    """
    pushes = (0, 1, 2.5), (0, 2, 5.0), (1, 1, 7.0), (0, 3, 7.5), (0, 4, 10.0), (1, 2, 14.0)
    first: list[Event] = [Report(*push) for push in pushes]
    end = [Left(worker, 15.0, clock, reason) for worker, clock in ((0, 4), (1, 2))]
    again = [Joined((0, 1), 100.0, 4), *(Report(0, 4 + step, 100.0 + 2.5 * step) for step in (1, 2, 3))]
    decided = drive(DSSP(2, 5), 2, *first, *end, *again)
    assert decided[-3:-1] == [GOES_ON] * 2
    assert decided[-1] == (GOES_ON if granted else PARKED)


def test_one_that_has_died_at_the_end_of_its_epoch_comes_back_alone(drive: Drive) -> None:
    """Worker 0 is parked, and is released as before."""
    ended: list[Event] = [Report(2, 1, 1.0), Left(2, 1.0, 1, "finished"), Report(0, 1, 2.0), Joined((2,), 3.0, 1)]
    assert drive(DSSP(0, 0), 3, *ended, Report(1, 1, 4.0))[-1] == (Sync((1,)), Proceed((0, 1)))
