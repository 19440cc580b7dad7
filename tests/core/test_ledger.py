import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import Ledger, Proceed, Sync, Ticket
from polyrhythm.errors import PolicyError

WORKERS = 4


def running(*workers: int) -> Ledger:
    ledger = Ledger()
    ledger.join(range(WORKERS))
    ledger.proceed(Proceed(workers))
    return ledger


def act(ledger: Ledger, action: str, worker: int) -> None:
    """One action of a driver or a policy, whether it is allowed or not."""
    live, flying = worker in ledger.accounts, {w for w, a in ledger.accounts.items() if a.running}
    if action == "join" and not live:
        ledger.join([worker])
    elif action == "report" and worker in flying:
        ledger.report(worker)
    elif action == "die" and live:
        ledger.leave(worker)
    elif action == "finish" and live and worker not in flying:
        ledger.settle(worker)
        ledger.leave(worker)
    elif action in ("gradients", "replicas"):
        ledger.proceed(Proceed((worker,), action))  # type: ignore[arg-type]
    elif action == "cancel":
        ledger.cancel([worker])
    elif action.startswith("sync"):
        ledger.sync(Sync((worker,), action.removeprefix("sync ")))  # type: ignore[arg-type]


ACTIONS = ["join", "report", "die", "finish", "gradients", "replicas", "cancel", "sync gradients", "sync parameters"]
steps = st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, WORKERS - 1)), max_size=80)


@settings(max_examples=300, deadline=None, derandomize=True, database=None)
@given(steps=steps)
def test_what_is_computed_is_applied_dropped_or_pending(steps: list[tuple[str, int]]) -> None:
    """After any actions; a refused one changes nothing."""
    ledger = Ledger()
    ledger.join(range(WORKERS))
    for action, worker in steps:
        before = repr(ledger)
        try:
            act(ledger, action, worker)
        except PolicyError:
            assert repr(ledger) == before
        assert ledger.computed == ledger.applied + ledger.dropped.total() + ledger.pending
    ledger.finish()
    assert ledger.pending == 0
    assert ledger.computed == ledger.applied + ledger.dropped.total()


def test_a_gradient_from_start_to_end() -> None:
    ledger = running(0)
    assert ledger.report(0) == (1, Ticket(0, 0, "gradients"))
    assert ledger.pending == 1
    assert ledger.sync(Sync((0,))) == [Ticket(0, 0, "gradients")]
    assert (ledger.computed, ledger.applied, ledger.pending) == (1, 1, 0)


def test_sync_takes_the_oldest_first() -> None:
    ledger = running(0)
    for _ in range(2):
        ledger.report(0)
        ledger.proceed(Proceed((0,)))
    assert [ticket.number for ticket in ledger.sync(Sync((0, 0)))] == [0, 1]


def test_local_steps_are_applied_by_an_average_and_lost_with_their_worker() -> None:
    ledger = running()
    ledger.proceed(Proceed((0, 1), "replicas"))
    ledger.report(0)
    ledger.report(1)
    assert ledger.sync(Sync((0,), "parameters")) == []
    assert ledger.leave(1) == (1, [])
    assert (ledger.applied, ledger.dropped) == (1, {"left": 1})


def test_leaving_voids_what_is_pending_and_in_flight() -> None:
    ledger = running(0)
    ledger.report(0)
    ledger.proceed(Proceed((0,)))
    assert ledger.leave(0) == (1, [Ticket(0, 0, "gradients"), Ticket(0, 1, "gradients")])
    assert ledger.dropped == {"left": 2}


def test_cancel_leaves_the_worker_waiting() -> None:
    ledger = running(0)
    assert ledger.cancel([0, 1]) == [Ticket(0, 0, "gradients")]
    assert ledger.dropped == {"cancelled": 1}
    assert ledger.proceed(Proceed((0,))) == [Ticket(0, 1, "gradients")]


def test_newcomers_start_at_the_smallest_clock() -> None:
    ledger = Ledger()
    assert ledger.join([0, 1]) == 0
    ledger.proceed(Proceed((0, 1)))
    ledger.report(0)
    assert ledger.join([2]) == 0
    ledger.leave(1)
    ledger.leave(2)
    assert ledger.join([3]) == 1


def test_clocks_never_restart() -> None:
    ledger = running(0)
    ledger.report(0)
    for worker in range(WORKERS):
        ledger.leave(worker)
    assert ledger.join([0]) == 1


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Proceed((0,)), "worker 0, which is still running; await its Report or Cancel it"),
        (Proceed((9,)), "worker 9, which is not live; forget a worker once it has Left"),
        (Proceed((1, 1)), "worker 1, which is still running"),
        (Proceed((2,)), "forget 1 local steps; Sync its parameters first"),
    ],
)
def test_refused_proceed(decision: Proceed, message: str) -> None:
    ledger = running(0)
    ledger.proceed(Proceed((2,), "replicas"))
    ledger.report(2)
    with pytest.raises(PolicyError, match=message):
        ledger.proceed(decision)


@pytest.mark.parametrize(
    ("decision", "message"),
    [
        (Sync(()), "names no workers; leave the decision out"),
        (Sync((1,)), "worker 1, which has no gradient pending"),
        (Sync((3, 3)), "worker 3, which has no gradient pending"),
        (Sync((3,), weights=(1.0, 2.0)), "has 2 weights for 1 workers"),
        (Sync((0,), "parameters"), "averages worker 0, which is still running"),
        (Sync((9,), "deltas"), "worker 9, which is not live"),
    ],
)
def test_refused_sync(decision: Sync, message: str) -> None:
    ledger = running(0, 3)
    ledger.report(3)
    with pytest.raises(PolicyError, match=message):
        ledger.sync(decision)


def test_refused_cancel_and_join() -> None:
    with pytest.raises(PolicyError, match="Cancel names worker 9, which is not live"):
        running().cancel([9])
    with pytest.raises(PolicyError, match="worker 0 joined twice"):
        running().join([0])


def stepped_locally(*workers: int) -> Ledger:
    ledger = Ledger()
    ledger.join(range(WORKERS))
    ledger.proceed(Proceed(workers, "replicas"))
    for worker in workers:
        ledger.report(worker)
    return ledger


def test_adopters_that_contribute_nothing_drop_what_they_have() -> None:
    ledger = stepped_locally(0, 1, 2)
    assert ledger.sync(Sync((0,), "parameters", adopters=(0, 1, 2, 3))) == []
    assert (ledger.applied, ledger.dropped, ledger.pending) == (1, {"replaced": 2}, 0)


def test_the_gradient_of_a_step_on_a_replica_is_combined_once() -> None:
    ledger = stepped_locally(0, 1)
    assert ledger.sync(Sync((0, 1))) == []
    assert (ledger.applied, ledger.pending) == (2, 0)
    with pytest.raises(PolicyError, match="worker 0, which has no gradient pending"):
        ledger.sync(Sync((0,)))
