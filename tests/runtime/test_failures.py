"""What goes wrong on real workers: the others finish with the accounting exact, or all end with one clear line."""

import os
import re
import signal
import socket
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import COORDINATOR
from polyrhythm.runtime.wire.connection import connect
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.protocol import Address
from tests.runtime.jobs import COORDINATOR_PID, LIMIT_S, Numbered, flat, job, make_model, make_optimizer, step
from tests.runtime.pretended_hosts import live_on

SAMPLES = 60
EPOCHS = 2

LOCKSTEP = (0, 5)
"""When it goes wrong: epoch and mini-batch of the last rank."""
ARBITRATED = (1, 0)
"""Only the first mini-batch of an epoch is certain to be given to every rank."""


def train(rank: int, name: str, what: str, when: tuple[int, int]) -> tuple[list[int], torch.Tensor, Status | None]:
    """Train; the last rank comes to grief. Indices seen in the last epoch, the parameters, and the coordinator's
    figures.
    """
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9)
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            indices: list[int] = []
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=2)):
                if rank == 2 and (epoch, number) == when:
                    come_to_grief(what)
                step(model, optimizer, x, y)
                indices += index.tolist()
        state = steer.status(steer.at(name)) if rank == 0 else None
    return indices, flat(model), state


def come_to_grief(what: str) -> None:
    if what == "raise":
        raise RuntimeError("the script's own mistake")
    os.kill(os.getpid(), signal.Signals[what])


@pytest.mark.parametrize("what", ["SIGKILL", "SIGSTOP", "raise"])
@pytest.mark.parametrize("policy", ["bsp", "local:4", "asp", "ssp:1", "k-sync:3"])
def test_the_others_finish(policy: str, what: str) -> None:
    name = f"failing-{os.getpid()}-{policy.replace(':', '-')}-{what}"
    when = LOCKSTEP if parse_policy(policy).traits.placement == "clock" else ARBITRATED
    with job(train, 3, name, what, when, name=name, policy=policy, hang_after=0.8, heartbeat_s=0.2) as running:
        first, second, lost = running.join()
    assert first.ok, first.traceback
    assert second.ok, second.traceback
    if what == "raise":
        assert "the script's own mistake" in lost.traceback
    else:
        assert lost.exit_code == -signal.SIGKILL  # what hangs is ended by the coordinator
    (ours, parameters, state), (theirs, others_parameters, _) = first.value, second.value
    assert torch.equal(parameters, others_parameters)
    assert isinstance(state, Status)
    assert (state.samples, state.skipped) == (EPOCHS * SAMPLES, 0)
    assert Counter(ours + theirs) == Counter(range(SAMPLES)), "the survivors have the last epoch to themselves"


def train_on_two_hosts(rank: int, *arguments: Any) -> Any:
    """As `train`, where the one who comes to grief sums up for another one."""
    live_on(rank // 2)
    return train(rank, *arguments)


@pytest.mark.parametrize("what", ["SIGKILL", "SIGSTOP"])
@pytest.mark.parametrize("policy", ["bsp", "local:4"])
def test_the_others_finish_on_several_hosts(policy: str, what: str) -> None:
    name = f"failing-{os.getpid()}-hosts-{policy.replace(':', '-')}-{what}"
    settings: dict[str, Any] = {"name": name, "policy": policy, "hang_after": 0.8, "heartbeat_s": 0.2}
    with job(train_on_two_hosts, 4, name, what, LOCKSTEP, **settings) as running:
        left = [outcome for outcome in running.join() if outcome.rank != 2]
    assert [outcome.traceback for outcome in left] == [""] * 3
    seen, parameters, states = zip(*(outcome.value for outcome in left), strict=True)
    assert all(torch.equal(parameters[0], other) for other in parameters)
    assert (states[0].samples, states[0].skipped) == (EPOCHS * SAMPLES, 0)
    assert Counter(chain.from_iterable(seen)) == Counter(range(SAMPLES)), (
        "the survivors have the last epoch to themselves"
    )


def join(rank: int, mistakes: dict[int, str]) -> int:
    """Take part in a job in the way that `mistakes` has for this rank; samples of this worker."""
    mistake = mistakes.get(rank, "")
    address = msgspec.json.decode(os.environ[COORDINATOR].encode(), type=Address)
    try:
        return take_part_wrongly(address, mistake)
    except PolyrhythmError:
        steer.absent(address, rank)  # as the launcher says when a process ends
        raise


def take_part_wrongly(address: Address, mistake: str) -> int:
    if mistake == "job":
        address = msgspec.structs.replace(address, job="another")
    os.environ[COORDINATOR] = msgspec.json.encode(address).decode()
    model = nn.Linear(6, 3) if mistake == "shape" else make_model()
    optimizer = make_optimizer(model, "Adam" if mistake == "optimizer" else "SGD", lr=0.1)
    data: Dataset[Any] = Numbered(SAMPLES + 1 if mistake == "data" else SAMPLES)
    if mistake in ("split", "content"):
        columns = map(torch.stack, zip(*(map(torch.as_tensor, data[index]) for index in range(SAMPLES)), strict=True))
        data = Subset(data, range(SAMPLES)[::-1]) if mistake == "split" else TensorDataset(*columns)
    how: dict[str, Any] = {"seed": 1} if mistake == "seed" else {"shuffle": False} if mistake == "shuffle" else {}
    with polyrhythm.session(model, optimizer) as session:
        if mistake == "resumed":
            session.load_state_dict({"epoch": 0, "policy": "bsp"})
        for _ in range(EPOCHS):
            for x, y, _index in session.loader(data, batch_size=2, **how):
                step(model, optimizer, x, y)
    return int(session.metrics["samples"])


WRONG = {
    "job": "this is job .*, not 'another'; check the address and the job id",
    "shape": r"refused rank \d while it opened the shards: the model of rank \d .* differs from that of the first",
    "optimizer": "use the same on every rank",
    "data": "data set has 6[01] samples, that of rank . has 6[01]; all workers must load the same data set",
    "seed": "its loader has seed=., that of rank . has seed=.; give the same seed on every rank",
    "shuffle": "its loader has shuffle=.*, that of rank . has shuffle=.*; give the same shuffle on every rank",
    "split": "its loader has subset=.*; a random split differs from rank to rank unless torch.manual_seed comes",
    "content": "a sample of its data set has other tensors than on rank .; all workers must load the same data",
    "resumed": "it starts at epoch . and rank . at epoch .; load the same checkpoint on every rank",
}


@pytest.mark.parametrize("mistake", WRONG)
def test_a_worker_that_does_not_fit_is_refused_and_the_other_goes_on(mistake: str) -> None:
    """Of two that differ, the one that comes second is refused."""
    with job(join, 2, {1: mistake}) as running:
        refused, accepted = sorted(running.join(), key=lambda outcome: outcome.ok)
    assert not refused.ok
    assert re.search(WRONG[mistake], refused.traceback.strip().split("\n")[-1]), refused.traceback
    assert accepted.ok, accepted.traceback
    assert accepted.value in (EPOCHS * SAMPLES, EPOCHS * (SAMPLES + 1), SAMPLES)


def join_twice(rank: int) -> str:
    """A second session, of another thread, under a rank that is taken; what it is told."""
    model = make_model()
    with polyrhythm.session(model, make_optimizer(model, lr=0.1)), ThreadPoolExecutor(1) as pool:
        return pool.submit(join_again).result()


def join_again() -> str:
    other = make_model()
    with pytest.raises(PolyrhythmError) as refused:
        polyrhythm.session(other, make_optimizer(other, lr=0.1)).__enter__()
    return str(refused.value)


def test_a_rank_cannot_join_twice() -> None:
    with job(join_twice, 1) as running:
        (outcome,) = running.join()
    assert "rank 0 is already part of this job; start each rank once" in outcome.value


def act_at(rank: int, act: Callable[[], None]) -> int:
    """One epoch in which rank 0 does something in its first step; samples of this worker."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer) as session:
        for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), batch_size=2)):
            if rank == 0 and number == 0:
                act()
            step(model, optimizer, x, y)
    return int(session.metrics["samples"])


def kill_coordinator() -> None:
    os.kill(int(os.environ[COORDINATOR_PID]), signal.SIGKILL)


@pytest.mark.parametrize("policy", ["bsp", "local:4", "asp", "k-sync:2"])
def test_without_a_hub_every_worker_ends_with_one_clear_line(policy: str) -> None:
    with job(act_at, 2, kill_coordinator, policy=policy) as running:
        outcomes = running.ranks.join(LIMIT_S)
    for outcome in outcomes:
        last = outcome.traceback.strip().split("\n")[-1]
        assert re.search(rf"rank {outcome.rank} lost server 0 while .* start the job again", last), last


@pytest.mark.parametrize("policy", ["bsp", "asp"])
@pytest.mark.parametrize("trouble", ["full", "no folder"])
def test_a_trace_that_cannot_be_written_does_not_touch_the_job(policy: str, trouble: str, tmp_path: Path) -> None:
    name = f"untraced-{os.getpid()}-{policy}-{trouble[:2]}"
    folder = tmp_path if trouble == "full" else Path("/dev/null/traces")
    if trouble == "full":
        (tmp_path / f"{name}-phase-1.jsonl").symlink_to("/dev/full")
    with job(train, 3, name, "", (-1, 0), name=name, policy=policy, trace=str(folder)) as running:
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), [outcome.traceback for outcome in outcomes]
    seen = Counter(index for outcome in outcomes for index in outcome.value[0])
    assert seen == Counter(range(SAMPLES))
    assert outcomes[0].value[2].samples == EPOCHS * SAMPLES


def stop_coordinator() -> None:
    os.kill(int(os.environ[COORDINATOR_PID]), signal.SIGSTOP)


@pytest.mark.parametrize("policy", ["bsp", "selsync:0.1", "local:4", "asp", "k-sync:2"])
def test_a_hub_that_is_stopped_does_not_keep_its_workers(policy: str) -> None:
    with job(act_at, 2, stop_coordinator, policy=policy, hang_after=1.0, heartbeat_s=0.2) as running:
        outcomes = running.ranks.join(LIMIT_S)
        os.kill(running.coordinator.processes[0].pid or 0, signal.SIGKILL)
    for outcome in outcomes:
        last = outcome.traceback.strip().split("\n")[-1]
        assert "the coordinator has not answered for 1 s; see --hang-after" in last, last


def send_foreign(data: bytes) -> None:
    """Talk to the coordinator in another tongue, until it hangs up."""
    address = msgspec.json.decode(os.environ[COORDINATOR].encode(), type=Address)
    with connect(address.coordinator, LIMIT_S) as sock:
        sock.sendall(data)
        sock.shutdown(socket.SHUT_WR)
        sock.recv(64)


@pytest.mark.parametrize(
    "foreign",
    [b"GET / HTTP/1.1\r\n\r\n", bytes(64), b"\xff" * 64, b""],
    ids=["http", "zeros", "ones", "nothing"],
)
def test_foreign_bytes_do_not_touch_the_job(foreign: bytes) -> None:
    with job(act_at, 2, partial(send_foreign, foreign)) as running:
        outcomes = running.join()
    assert [outcome.value for outcome in outcomes] == [SAMPLES // 2, SAMPLES // 2]
