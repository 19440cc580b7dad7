"""Workers and jobs that are asked to end: SIGTERM to one, to the launcher, Ctrl-C, and `Session.leave`."""

import os
import re
import signal
import sys
import threading
import uuid
from collections import Counter
from functools import partial
from multiprocessing import get_context

import pytest

import polyrhythm
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.preemption import ENDING, SETTLE_S, TerminationWatch, file_in_memory, tell_ending
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.job_config import JobConfig
from tests.runtime.jobs import Numbered, job, make_model, make_optimizer, step
from tests.runtime.places import LIMIT_S, Place

SAMPLES, EPOCHS, BATCH = 60, 2, 2
POLICIES = ["bsp", "local:4", "asp", "ssp:1", "k-sync:3", "esync"]
WHOLE = ("bsp", "local:4", "asp")
"""Under which each step of a worker that is asked to end counts, and none of the others' is made in vain."""

LEAVING = """
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(3):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
            if rank == 1 and (epoch, number) == (1, 0):
                os.kill(os.getpid(), signal.SIGTERM)
            step(x, y)
    print("finished", rank)
"""

UNMODIFIED = """
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

dist.init_process_group("gloo")
model = torch.nn.parallel.DistributedDataParallel(model)
loader = DataLoader(data, 2, sampler=DistributedSampler(data))
for epoch in range(3):
    for number, (x, y) in enumerate(loader):
        if rank == 1 and (epoch, number) == (1, 0):
            os.kill(os.getpid(), signal.SIGTERM)
        step(x, y)
print("finished", rank)
"""

SAVING = """
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(10**6):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
            if rank == 0 and (epoch, number) == (1, 0):
                os.kill(os.getppid(), signal.SIGTERM)
            step(x, y)
            if asked:
                break
        if asked:
            break
    if rank == 0:
        for epoch in range(epoch, epoch + 20):  # however long it takes, the servers are there
            for x, y in session.loader(data, batch_size=2):
                step(x, y)
        state = session.state_dict()
        velocities = [entry["momentum_buffer"] for entry in optimizer.state_dict()["state"].values()]
        print("saved", state["policy"], len(velocities), all(bool(v.abs().sum()) for v in velocities))
"""

KEPT = """
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(int(sys.argv[1])):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
            step(x, y)
            if rank == 0 and (epoch, number) == (1, 2) and not os.path.exists("asked"):
                open("asked", "w").close()
                os.kill(os.getppid(), signal.SIGTERM)
    print("samples", session.metrics["samples"])
"""

SIGNALLED = """
from pathlib import Path

def is_coordinator(path):
    try:
        parent = int((path.parent / "stat").read_text().rpartition(")")[2].split()[1])
        return parent == os.getppid() and b"coordinator.process" in path.read_bytes()
    except OSError:  # ended meanwhile
        return False

with polyrhythm.session(model, optimizer) as session:
    for epoch in range(3):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
            if rank == 0 and (epoch, number) == (1, 0):
                (coordinator,) = filter(is_coordinator, Path("/proc").glob("[0-9]*/cmdline"))
                for number in (signal.SIGINT, signal.SIGTERM):
                    os.kill(int(coordinator.parent.name), number)
            step(x, y)
    print("samples", session.metrics["samples"])
"""

STUBBORN = """
if rank == 1:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(10**6):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
            if rank == 1 and (epoch, number) == (1, 0):
                os.kill(os.getppid(), signal.SIGTERM)
            step(x, y)
"""

ENDLESS = """
with polyrhythm.session(model, optimizer) as session:
    for epoch in range(10**6):
        for number, (x, y) in enumerate(session.loader(data, batch_size=2)):
            step(x, y)
            if rank == 0 and (epoch, number) == (1, 0):
                print("under way", flush=True)
"""


@pytest.mark.parametrize(
    ("policy", "script"), [("bsp", UNMODIFIED), ("asp", LEAVING)], ids=["bsp unmodified", "asp in a session"]
)
def test_a_worker_that_is_asked_to_end_is_no_failure(place: Place, policy: str, script: str) -> None:
    done = place.run(script, "--nproc-per-node", "2", "--policy", policy)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "finished 0\n"
    assert re.search(r"polyrhythm: rank 1 was asked to end, and has left(; 1 worker goes on)?\n", done.stderr)
    assert "rank 1 left early in phase" in done.stderr
    assert not re.search("Traceback|failed", done.stderr)
    assert list(place.processes()) == []


def test_the_servers_stay_for_the_last_checkpoint(place: Place) -> None:
    done = place.run(SAVING, "--nproc-per-node", "2", "--policy", "asp")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert done.stdout == "saved asp 2 True\n", done.stderr
    assert "polyrhythm: SIGTERM: workers have 30 s to end" in done.stderr
    assert list(place.processes()) == []


LAUNCHER, ALL = "os.kill(os.getppid(), signal.SIGTERM)", "os.killpg(0, signal.SIGTERM)"


@pytest.mark.parametrize(("policy", "told"), [("asp", LAUNCHER), ("bsp", ALL), ("asp", ALL), ("local:4", ALL)])
def test_a_job_that_is_asked_to_end_keeps_a_checkpoint_first(place: Place, policy: str, told: str) -> None:
    """Its launcher alone, or all of its processes, as Slurm does: workers heard it twice then, and died of it."""
    arguments = "--nproc-per-node", "2", "--policy", policy, "--checkpoint", "kept", "--every", "1h"
    script = KEPT.replace("os.kill(os.getppid(), signal.SIGTERM)", told)
    first = place.run(script, *arguments, arguments=[str(10**6)])  # which only the signal ends
    assert first.returncode == 128 + signal.SIGTERM, first.stderr
    assert "died" not in first.stderr
    kept = re.search(r"coordinator: checkpoint kept/checkpoint-000001: epoch (\d+), ", first.stderr)
    assert kept is not None, first.stderr
    again = place.run(script, *arguments, arguments=[str(int(kept[1]) + 2)])
    assert again.returncode == 0, again.stderr
    assert "goes on from checkpoint kept/checkpoint-000001" in again.stderr
    assert list(place.processes()) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_terminal_that_is_gone_ends_a_job_as_sigterm_does(place: Place, method: str) -> None:
    """The kernel and the shell both tell all of its processes."""
    script = SAVING.replace("os.kill(os.getppid(), signal.SIGTERM)", "[os.killpg(0, signal.SIGHUP) for _ in range(2)]")
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # pytest may run under nohup
    try:
        done = place.run(script, "--nproc-per-node", "2", "--policy", "asp", "--start-method", method)
    finally:
        signal.signal(signal.SIGHUP, before)
    assert done.returncode == 128 + signal.SIGHUP, done.stderr
    assert done.stdout == "saved asp 2 True\n", done.stderr
    assert list(place.processes()) == []


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_workers_ignore_an_interrupt_that_their_launcher_was_to_ignore(place: Place, method: str) -> None:
    """As of a command that a shell's script has put into the background."""
    script = "print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)"
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        done = place.run(script, "--nproc-per-node", "2", "--start-method", method)
    finally:
        signal.signal(signal.SIGINT, before)
    assert done.stdout == "True\nTrue\n", done.stderr


def test_a_signal_to_all_processes_finds_the_coordinator_waiting_for_its_workers(place: Place) -> None:
    done = place.run(SIGNALLED, "--nproc-per-node", "1", "--policy", "asp")
    assert (done.returncode, done.stdout) == (0, "samples 120\n"), done.stderr


def test_who_does_not_end_in_time_is_ended(place: Place) -> None:
    done = place.run(STUBBORN, "--nproc-per-node", "2", "--policy", "asp", "--grace", "0.2")
    assert done.returncode == 128 + signal.SIGTERM, done.stderr
    assert "Traceback" not in done.stderr
    assert list(place.processes()) == []


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_ctrl_c_twice_ends_all_without_a_traceback(place: Place, policy: str) -> None:
    with place.start(ENDLESS, "--nproc-per-node", "2", "--policy", policy) as launcher:
        assert launcher.stdout is not None
        assert launcher.stdout.readline() == "under way\n"
        os.killpg(launcher.pid, signal.SIGINT)
        os.killpg(launcher.pid, signal.SIGINT)
        _, err = launcher.communicate(timeout=LIMIT_S)
    assert launcher.returncode == 128 + signal.SIGINT, err
    assert "Traceback" not in err
    assert "polyrhythm: SIGINT: workers have 30 s to end; once more ends them at once" in err


def train(rank: int, name: str, how: str, when: tuple[int, int]) -> tuple[list[int], Status | None]:
    """Train; the last rank leaves. Samples seen in the last epoch, and how the coordinator is at the end."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9)
    indices: list[int] = []
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            indices.clear()
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=BATCH)):
                if how == "signal" and rank == 2 and (epoch, number) == when:
                    os.kill(os.getpid(), signal.SIGTERM)
                step(model, optimizer, x, y)
                indices += index.tolist()
                if how == "leave" and rank == 2 and (epoch, number) == when:
                    session.leave()
        return indices, steer.status(steer.at(name)) if rank == 0 else None


@pytest.mark.parametrize("how", ["signal", "leave"])
@pytest.mark.parametrize("policy", POLICIES)
def test_the_others_process_its_samples(policy: str, how: str) -> None:
    name = f"leaving-{uuid.uuid4().hex}"
    # Only the first mini-batch of an epoch is certain to be given to every rank, unless all step together.
    when = (0, 5) if parse_policy(policy).traits.placement == "clock" else (1, 0)
    with job(train, 3, name, how, when, name=name, policy=policy) as running:
        outcomes = running.join()
    assert outcomes[2].ok == (how == "leave"), outcomes[2].traceback
    assert how == "leave" or outcomes[2].traceback.strip().endswith("SystemExit: 143"), outcomes[2].traceback
    assert all(outcome.ok for outcome in outcomes[:2]), [outcome.traceback for outcome in outcomes]
    (first, status), (second, _) = outcomes[0].value, outcomes[1].value
    assert isinstance(status, Status)
    assert (status.samples, status.skipped) == (EPOCHS * SAMPLES, 0)
    if how == "signal" and policy in WHOLE:
        assert (status.dropped, status.applied) == ({}, status.samples // BATCH)
    seen = Counter(first + second)
    assert {*seen.values()} == {1}
    assert len(seen) >= SAMPLES - BATCH, "what it had not processed when it left"


def test_a_script_keeps_its_own_handler() -> None:
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        watch = TerminationWatch(lambda: None, JobConfig(job="watched"))
        watch.start()
        watch.stop()
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGTERM, before)


@pytest.mark.parametrize(("grace", "status"), [(30.0, 7), (0.0, -signal.SIGTERM)])
def test_what_comes_again_in_time_is_the_same_and_later_it_ends_the_process(grace: float, status: int) -> None:
    context = get_context("fork")
    child = context.Process(target=hear_twice, args=(JobConfig(job="twice", grace=grace),))
    child.start()
    child.join(60)
    assert child.exitcode == status


def hear_twice(config: JobConfig) -> None:
    asked: list[int] = []
    watch = TerminationWatch(lambda: asked.append(1), config)
    watch.start()
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGTERM)
        watch.stop(ending=True)  # what the launcher sends meanwhile is no other word
    sys.exit(7 if asked == [1] else 1)


def test_a_word_at_the_end_of_a_session_is_for_the_next_one() -> None:
    """Its handler stayed, and every further word was lost in it."""
    context = get_context("fork")
    child = context.Process(target=hear_late)
    child.start()
    child.join(60)
    assert child.exitcode == 7


def hear_late() -> None:
    asked: list[int] = []
    for session in range(2):
        watch = TerminationWatch(partial(asked.append, session), JobConfig(job="late"))
        watch.start()
        if session == 0:
            os.kill(os.getpid(), signal.SIGTERM)
        watch.stop()
        if signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL:
            sys.exit(1)
    sys.exit(7 if asked == [0, 1] else 2)


@pytest.mark.parametrize("asked", [True, False])
def test_a_worker_stays_for_the_last_checkpoint_if_its_launcher_ends_too(asked: bool) -> None:
    left = threading.Event()
    with file_in_memory(ENDING):
        watch = TerminationWatch(left.set, JobConfig(job="last", checkpoint="kept"))
        watch.start()
        try:
            if asked:
                tell_ending("keeps")
            os.kill(os.getpid(), signal.SIGTERM)
            assert not left.is_set()
            if asked:
                assert not left.wait(2 * SETTLE_S)
                tell_ending("over")
            assert left.wait(60)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def leave_when_told(watch: TerminationWatch, left: threading.Event) -> None:
    """SIGTERM comes, and then the worker leaves."""
    watch.start()
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        assert left.wait(60)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_where_no_launcher_has_a_last_checkpoint_kept_the_worker_does() -> None:
    """As under torchrun, which tells workers alone."""
    did: list[str] = []
    left = threading.Event()

    def leave() -> None:
        did.append("leave")
        left.set()

    watch = TerminationWatch(leave, JobConfig(job="last", checkpoint="kept"), lambda: did.append("keep"))
    leave_when_told(watch, left)
    assert did == ["keep", "leave"]


def test_a_worker_that_cannot_ask_for_a_last_checkpoint_ends_all_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    left = threading.Event()

    def keep() -> None:
        raise OSError("too many open files")

    watch = TerminationWatch(left.set, JobConfig(job="last", checkpoint="kept"), keep)
    leave_when_told(watch, left)
    said = "no last checkpoint could be asked for (OSError: too many open files); this worker ends without\n"
    assert capsys.readouterr().err == f"polyrhythm: {said}"


def test_a_forked_process_is_ended_as_ever() -> None:
    watch = TerminationWatch(lambda: None, JobConfig(job="watched"))
    watch.start()
    try:
        context = get_context("fork")
        ready = context.Event()
        child = context.Process(target=stand, args=(ready,))
        child.start()
        assert ready.wait(60)
        child.terminate()
        child.join(60)
    finally:
        watch.stop()
    assert child.exitcode == -signal.SIGTERM


def stand(ready: object) -> None:
    """Say that one is there, and wait."""
    ready.set()  # type: ignore[attr-defined]
    signal.pause()
