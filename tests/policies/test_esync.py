import pytest

from polyrhythm.core import (
    Alarm,
    Bounds,
    Cluster,
    Decisions,
    Joined,
    Left,
    LeftReason,
    Outer,
    Proceed,
    Report,
    Stop,
    Stopped,
    Sync,
    Wake,
)
from polyrhythm.errors import SpecError
from polyrhythm.policies import ESync, parse_policy
from polyrhythm.policies.esync import DevicePace, ESyncState
from polyrhythm.testing import ClusterScript, Fault, ScriptPlayer
from tests.policies.conftest import Drive

SLOW, FAST = 10.0, 1.0
GO_SLOW, GO_FAST = (Proceed((0,), "replicas"),), (Proceed((1,), "replicas"),)


def average(*workers: int) -> tuple[Sync, Proceed]:
    return Sync(workers, "deltas"), Proceed(workers, "replicas")


def report(worker: int, clock: int, time_s: float, transfer_s: float = 0.0) -> Report:
    return Report(worker, clock, time_s, step_s=SLOW if worker == 0 else FAST, transfer_s=transfer_s)


def first_round() -> list[Report | Alarm]:
    """Worker 0 needs 10 s, worker 1 is held for an instant after its first step, and makes ten."""
    fast: list[Report | Alarm] = [report(1, clock, clock + 0.05) for clock in range(2, 10)]
    return [report(1, 1, 1.0), Alarm(1.05), *fast, report(0, 1, 10.0), report(1, 10, 10.05)]


def test_nobody_is_ready_before_all_costs_are_known(drive: Drive) -> None:
    decided = drive(ESync(), 2, *first_round())
    assert decided[0] == (Wake(1.05),)
    assert decided[1:10] == [GO_FAST] * 9
    assert decided[10:] == [(), average(0, 1)]


def test_as_many_steps_as_fit_before_the_slowest_is_done(drive: Drive) -> None:
    """The second round starts at 10.05; the slowest is due at 20.05, and a step that ends at 19.05 is the last."""
    second = [report(1, 10 + step, 10.05 + step) for step in range(1, 10)]
    decided = drive(ESync(), 2, *first_round(), *second, report(0, 2, 20.05))[12:]
    assert decided[:8] == [GO_FAST] * 8
    assert decided[8:] == [(), average(0, 1)]


def test_a_step_that_nearly_fits_is_not_started(drive: Drive) -> None:
    for epsilon, decisions in ((0.0, GO_FAST), (0.5, ())):
        assert drive(ESync(epsilon=epsilon), 2, *first_round(), report(1, 11, 18.8))[-1] == decisions


def test_the_slowest_must_have_finished_its_pull(drive: Drive) -> None:
    """The exchange took 4 s the last time, so until 4 s after it nobody is ready, however late the slowest seems."""
    policy = ESync(smoothing=1.0)
    rounds = [*first_round(), report(1, 11, 15.05, transfer_s=4.0), report(0, 2, 24.05, transfer_s=4.0)]
    rounds.append(report(1, 12, 24.1))
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    for event in rounds:
        state, decisions = policy.decide(state, event)
    assert decisions == average(0, 1)
    slowest = state.devices.get(0)
    assert slowest is not None
    assert slowest.finished_s == pytest.approx(24.1 + 4.0)
    assert policy.decide(state, report(1, 13, 28.0))[1] == GO_FAST


def test_cost_holds_the_query_and_is_smoothed() -> None:
    policy = ESync(smoothing=0.5)
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    for clock, transfer_s in enumerate((0.2, 0.4), 1):
        state, _ = policy.decide(state, Report(1, clock, float(clock), step_s=1.0, transfer_s=transfer_s))
    device = state.devices.get(1)
    assert device is not None
    assert device.query_s == pytest.approx(0.3)
    assert device.cost_s == pytest.approx(1.25)


def test_the_slowest_is_found_anew_when_capabilities_change() -> None:
    script = ClusterScript(
        workers=2, durations=((9.0, 9.0, 1.0, 1.0, 1.0, 1.0), (1.0,) * 20 + (9.0,) * 99), total_samples=60
    )
    stage = ScriptPlayer(ESync(smoothing=1.0), script).play()
    clocks = [event.clock for event, decided in stage.entries if isinstance(event, Report) and event.worker == 0]
    assert max(clocks) > 15


def test_a_worker_that_dies_leaves_the_round(drive: Drive) -> None:
    events = [*first_round()[:-1], Left(1, 10.5, 9)]
    assert drive(ESync(), 2, *events)[-1] == average(0)
    waiting = [*first_round(), report(1, 11, 19.9), Left(0, 30.0, 1)]
    assert drive(ESync(), 2, *waiting)[-2:] == [(), average(1)]


def test_a_newcomer_is_waited_for(drive: Drive) -> None:
    events = [*first_round()[:-1], Joined((2,), 10.02, 1), report(1, 10, 10.05), Report(2, 2, 11.0, step_s=1.0)]
    assert drive(ESync(), 2, *events)[-3:] == [(Proceed((2,), "replicas"),), GO_FAST, ()]
    assert drive(ESync(), 2, *events, report(1, 11, 11.05))[-1] == average(0, 1, 2)


def test_without_blocking_everyone_computes_on_until_the_word_has_come(drive: Drive) -> None:
    """What is reported after READY counts too; all meet when all have stopped."""
    later = [report(1, 11, 11.0), Stopped(11.2, 0), report(1, 12, 12.0), Stopped(12.1, 1)]
    decided = drive(ESync("samples", blocking=False), 2, *first_round(), *later)
    assert decided[0] == (*GO_FAST, Wake(1.05))
    assert decided[1] == ()
    assert decided[2:10] == [GO_FAST] * 8
    assert decided[10] == GO_SLOW
    assert decided[11] == (*GO_FAST, Stop((0, 1)))
    assert decided[12:15] == [GO_FAST, (), GO_FAST]
    assert decided[15] == (Sync((0, 1), "deltas", (1.0, 12.0)), Proceed((0, 1), "replicas"))


def test_who_comes_while_the_word_travels_starts_with_the_next_round(drive: Drive) -> None:
    later = [Joined((2, 3), 10.5, 1), Left(3, 10.6, 1), Stopped(11.0, 0), Stopped(11.0, 1), report(1, 11, 12.0)]
    decided = drive(ESync(blocking=False), 2, *first_round(), *later)
    assert decided[12:15] == [(), (), ()]
    assert decided[15] == (*average(0, 1), Proceed((2,), "replicas"))
    assert decided[16] == GO_FAST


def test_who_dies_while_the_word_travels_is_not_waited_for(drive: Drive) -> None:
    decided = drive(ESync(blocking=False), 2, *first_round(), Stopped(11.0, 1), Left(0, 11.1, 1))
    assert decided[-2:] == [(), average(1)]
    alone = drive(ESync(blocking=False), 2, *first_round(), Joined((2,), 10.5, 1), Left(0, 11.0, 1), Left(1, 11.1, 10))
    assert alone[-1] == (Proceed((2,), "replicas"),)


@pytest.mark.parametrize(
    ("weights", "expected", "outer"),
    [
        ("uniform", None, None),
        ("samples", (1.0, 10.0), None),
        ("inverse", (1.0, 1 / 10), None),
        ("normalised", (1.0, 1 / 10), Outer(lr=5.5 * (1 + 1 / 10) / 2)),
    ],
)
def test_weights(drive: Drive, weights: str, expected: tuple[float, ...] | None, outer: Outer | None) -> None:
    sync = drive(ESync(weights), 2, *first_round())[-1][0]
    assert sync == Sync((0, 1), "deltas", expected, outer=outer)


def test_fast_workers_may_be_kept_to_a_number_of_steps(drive: Drive) -> None:
    decided = drive(ESync(most=3), 2, *first_round()[:4])
    assert decided == [(Wake(1.05),), GO_FAST, GO_FAST, ()]


@pytest.mark.parametrize("blocking", [True, False])
def test_nobody_hangs_when_the_slowest_dies_again_and_again(blocking: bool) -> None:
    faults = tuple(Fault(worker, step=1) for worker in (2, 1))
    durations = ((1.0,), (3.0,), (9.0,))
    script = ClusterScript(3, durations, total_samples=50, dataset_samples=50, faults=faults, latency_s=2.5)
    stage = ScriptPlayer(ESync(blocking=blocking), script).play()
    assert not stage.ledger.accounts
    assert not stage.left


def test_bounds() -> None:
    assert ESync().bounds(Cluster(4)) == Bounds(staleness=0)


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("esync:equal", "weights must be one of uniform, samples, inverse, normalised but got 'equal'"),
        ("esync:epsilon=-1", "epsilon must be at least 0 and finite but got -1"),
        ("esync:smoothing=0", "smoothing must be above 0 and at most 1 but got 0"),
        ("esync:most=0", "most must be a whole number of at least 1 but got 0"),
    ],
)
def test_impossible_parameters(spec: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        parse_policy(spec)


def paused(policy: ESync, reason: LeftReason, *back: int) -> tuple[ESyncState, Decisions]:
    """Two rounds of an epoch, in which worker 1 makes ten and nine steps; all leave, and some join at 100 s."""
    second = [report(1, 10 + step, 10.05 + step, transfer_s=0.1) for step in range(1, 10)]
    end = [Left(worker, 21.0, 2 + 17 * worker, reason) for worker in (0, 1)]
    state, _ = policy.decide(policy.init(Cluster(2)), Joined((0, 1), 0.0))
    for event in (*first_round(), *second, report(0, 2, 20.05, transfer_s=0.1), *end):
        state, _ = policy.decide(state, event)
    return policy.decide(state, Joined(back, 100.0, 19))


@pytest.mark.parametrize("blocking", [True, False])
def test_the_end_of_an_epoch_costs_no_new_calibration(blocking: bool) -> None:
    """The third round begins at 100 s, and a step of worker 1 that ends at 109 s is its last."""
    policy = ESync(blocking=blocking)
    state, decisions = paused(policy, "finished", 0, 1)
    assert decisions == (Proceed((0, 1), "replicas"),)
    assert (state.unknown, state.slowest) == (0, 0)
    for step in range(1, 9):
        state, decisions = policy.decide(state, report(1, 19 + step, 100.0 + step))
        assert decisions == GO_FAST
    state, decisions = policy.decide(state, report(1, 28, 109.0))
    assert (decisions, state.ready) == (() if blocking else GO_FAST, 1)


def test_costs_outlast_an_epoch_and_its_steps_do_not() -> None:
    """A transfer of 0.1 s that holds an exchange is one, and of later ones those of queries are known."""
    state, _ = paused(ESync(smoothing=1.0), "finished", 0, 1)
    assert state.devices.get(0) == DevicePace(100.0, False, SLOW, query_s=0.0, exchange_s=0.1)
    assert state.devices.get(1) == DevicePace(100.0, False, FAST + 0.1, query_s=0.1, exchange_s=0.1)


def test_who_has_died_or_does_not_come_back_is_not_known() -> None:
    """Nobody is READY before a newcomer's cost is known."""
    assert paused(ESync(), "died", 0, 1)[0].unknown == 2
    state, _ = paused(ESync(), "finished", 0, 2)
    assert (state.unknown, state.slowest) == (1, 0)
    state, _ = ESync().decide(state, Joined((1,), 101.0, 19))
    assert (state.unknown, state.slowest) == (2, 0)
