"""What a coordinator counts and remembers for those outside, and what they can ask of it."""

import signal
import socket
from typing import Any

import msgspec
import pytest

import polyrhythm
from polyrhythm.core import LeftReason, Report, Sync
from polyrhythm.errors import PolyrhythmError, UnreachableError, UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.connections import require
from polyrhythm.runtime.coordinator.monitor import KEPT_EVENTS, JobMonitor
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.control_protocol import AskStatus, EndJob, RemoveWorker, Status
from polyrhythm.runtime.wire.protocol import SwitchTo
from tests.runtime.jobs import Numbered, job, make_model, make_optimizer, step


def monitor(policy: str) -> JobMonitor:
    made = JobMonitor(lambda: 1.0)
    made.begin_phase(1, parse_policy(policy), 2, "")
    return made


def report(worker: int, staleness: int = 0) -> Report:
    return Report(worker, 1, 1.0, samples=8, staleness=staleness)


def test_staleness_is_counted_by_bits() -> None:
    made = monitor("asp")
    for staleness in (0, 1, 2, 3, 4, 10**9):
        made.record(report(0, staleness), ())
    assert made.staleness[:4] == [1, 1, 2, 1]
    assert (made.staleness[-1], made.staleness_sum, made.samples) == (1, 10 + 10**9, {0: 48})


def test_a_step_is_local_unless_an_exchange_follows() -> None:
    made = monitor("local:2")
    made.record(report(0), ())
    made.record(report(1), ())
    made.record(report(0), ())
    made.record(report(1), (Sync((0, 1), "deltas"),))
    assert (made.steps, made.local_steps) == (4, 2)
    made.record(report(0), (Sync((1,), "deltas", adopters=(0, 1)),))
    assert (made.steps, made.local_steps) == (5, 2)


def test_what_happens_to_the_policy_is_told_apart() -> None:
    made = monitor("asp")
    made.begin_phase(2, parse_policy("ssp:3"), 2, "")
    made.begin_phase(3, parse_policy("ssp:3"), 1, "")
    made.begin_phase(4, parse_policy("bsp"), 1, "the loss of rank 0 is nan: went back")
    assert [event.kind for event in made.after(0)] == ["start", "switch", "phase", "rollback", "switch"]
    assert made.switches == 2


@pytest.mark.parametrize(
    ("reasons", "outcome"),
    [
        ((), "no worker has joined"),
        (("died", "finished"), "finished"),
        (("died", "removed"), "all workers have left"),
        (("died", "hung"), "all workers have died"),
    ],
)
def test_a_job_is_finished_once_a_worker_is_through(reasons: tuple[LeftReason, ...], outcome: str) -> None:
    made, (ours, _) = monitor("asp"), socket.socketpair()
    for rank, reason in enumerate(reasons):
        made.joined(rank, Channel(ours, msgspec.msgpack.Decoder(), "a worker"))
        made.lost(rank, reason)
    assert made.outcome == outcome


def test_events_have_numbers_and_an_end() -> None:
    made = monitor("asp")
    for rank in range(2 * KEPT_EVENTS):
        made.lost(rank, "hung")
    numbers = [event.number for event in made.after(0)]
    assert numbers == [*range(KEPT_EVENTS + 2, 2 * KEPT_EVENTS + 2)]
    assert [event.text for event in made.after(numbers[-2])] == ["rank 199 hangs"]


def test_a_divergence_is_told_once() -> None:
    made = monitor("asp")
    made.diverged("the loss is nan")
    made.diverged("the loss is nan")
    assert [event.kind for event in made.after(0)] == ["start", "divergence"]


def until_stopped(rank: int) -> str:
    """Train until the job is no more; what the session said then."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.01)
    data = Numbered(64)
    try:
        with polyrhythm.session(model, optimizer) as session:
            while True:
                for x, y, _ in session.loader(data, batch_size=4):
                    step(model, optimizer, x, y)
    except PolyrhythmError as error:
        return str(error)


def ask_until(controller: steer.Controller, wanted: Any) -> Status:
    """Ask until something holds; each question waits for its answer."""
    while True:
        answer = controller.ask(AskStatus())
        if wanted(answer):
            return answer


def test_who_asks_hears_the_loss_and_who_has_chosen_the_policy() -> None:
    with job(until_stopped, 2, name="asked", policy="auto") as running:
        with steer.Controller(steer.at("asked")) as controller:
            now = ask_until(controller, lambda s: s.loss is not None)
            assert (now.policy, now.chosen) == ("balanced", "auto")
            now = controller.ask(SwitchTo("asp", "a test"))
            assert now.chosen == ("auto" if now.switching_to else "")
            assert ask_until(controller, lambda s: s.policy == "asp").chosen == ""
            controller.ask(EndJob("a test"))
        running.join()


def test_a_job_is_followed_steered_and_ended_from_outside() -> None:
    with job(until_stopped, 3, name="steered-outside", policy="asp") as running:
        address = steer.at("steered-outside")
        with steer.Controller(address) as controller:
            now = ask_until(controller, lambda s: s.loss is not None and len(s.arrivals) == 3)
            assert (now.policy, now.planned, now.dataset_samples) == ("asp", 3, 64)
            assert [worker.rank for worker in now.workers] == [0, 1, 2]
            assert all(worker.samples and worker.reported_s is not None for worker in now.workers)
            assert now.events[0].kind == "start"
            with pytest.raises(UsageError, match=r"rank 7 is not in this job; its ranks are \[0, 1, 2\]"):
                controller.ask(RemoveWorker(7, "a test"))
            controller.ask(SwitchTo("ssp:3", "a test"))
            switched = ask_until(controller, lambda s: s.policy == "ssp:3")
            assert [e.text for e in switched.events if e.kind == "control"] == ["a test asks to switch to ssp:3"]
            controller.ask(RemoveWorker(1, "a test"))
            left = ask_until(controller, lambda s: s.members == (0, 2))
            assert [event.rank for event in left.events if event.kind == "death"] == [1]
            known = left.events[-1].number
            assert all(event.number > known for event in controller.ask(AskStatus(known)).events)
            controller.ask(EndJob("a test"))
            last = controller.ask(AskStatus())
            assert last.ended == "job steered-outside was ended by a test"
            with pytest.raises(UnreachableError):
                controller.ask(AskStatus())
        outcomes = running.join(leave=(1,))
    assert all("was ended by a test" in outcome.value for outcome in outcomes)
    assert running.ranks.processes[1].exitcode == -signal.SIGKILL


def test_who_asks_for_a_rank_before_any_has_joined_is_told_so() -> None:
    with pytest.raises(UsageError, match=r"^rank 9 is not in this job; no rank has joined it yet$"):
        require(9, ())
