"""Replicas that meet only when it pays, on real workers: parity laws, every switch, and deaths in the middle."""

import os
import signal
import uuid
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

import polyrhythm
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.collectives.server_reduce import SumThread
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import Status
from tests.runtime.jobs import Numbered, flat, job, make_model, make_optimizer, run_job, step
from tests.runtime.worker.test_session_parity import MOMENTUM, PLAIN, close, train, train_alone
from tests.runtime.worker.test_session_switch import switch_in_every_epoch

SAMPLES = 90
POLICIES = [
    "bsp",
    "asp",
    "k-sync:2",
    "local:3",
    "diloco:4,overlap=2,fragments=2",
    "fedavg:0.5,e=0.3",
    "selsync:0.01",
    "selsync:0.01,aggregate=gradients",
    "esync",
    "tests.runtime.abandoning:Abandoning",
]


def tour(policies: list[str]) -> list[str]:
    """A walk that takes every direction between two of them once."""
    last = len(policies) - 1
    pairs = [(a, b) for a in range(last) for b in range(a + 1, last + 1)]
    return [policies[i] for pair in pairs for i in pair] + policies[:1]


def test_the_tour_has_every_direction_once() -> None:
    expected = Counter({(a, b): 1 for a in POLICIES for b in POLICIES if a != b})
    assert Counter(pairwise(tour(POLICIES))) == expected


def test_switches_between_any_two_lose_and_double_no_sample() -> None:
    policies = tour(POLICIES)
    by_rank = run_job(switch_in_every_epoch, 3, policies, {}, policy=policies[0], allow_policy_files=True)
    for number, (before, after) in enumerate(pairwise(policies)):
        epoch = [ranks[number] for ranks in by_rank]
        assert {seen.policy for seen in epoch} == {parse_policy(after).spec}, f"{before} -> {after}"
        assert all(torch.equal(seen.parameters, epoch[0].parameters) for seen in epoch), f"{before} -> {after}"
        counts = Counter(index for seen in epoch for index in seen.indices)
        assert set(counts) == set(range(SAMPLES)), f"{before} -> {after}"
        cancels = any(parse_policy(policy).traits.cancels for policy in (before, after))
        assert cancels or set(counts.values()) == {1}, f"{before} -> {after}"


def test_switches_to_workers_that_wait_for_nobody_and_back() -> None:
    """They may be through with the epoch before the word reaches them; what a halt abandons is computed again."""
    free = "esync:blocking=false"
    policies = [policy for other in ("bsp", "asp", "local:3", "esync") for policy in (free, other)]
    by_rank = run_job(switch_in_every_epoch, 3, [*policies, free], {}, policy=free)
    for number in range(len(policies)):
        epoch = [ranks[number] for ranks in by_rank]
        assert {seen.policy for seen in epoch} <= {
            parse_policy(policy).spec for policy in [*policies, free][number:][:2]
        }
        assert all(torch.equal(seen.parameters, epoch[0].parameters) for seen in epoch)
        assert {index for seen in epoch for index in seen.indices} == set(range(SAMPLES))


def test_one_worker_is_a_plain_loop_whatever_is_switched() -> None:
    switches = {
        (0, 2): "selsync:0.1",
        (0, 6): "diloco:3,lr=1,momentum=0,overlap=1,fragments=2",
        (1, 0): "esync",
        (1, 2): "esync:blocking=false",
        (1, 5): "selsync:0,aggregate=gradients",
        (1, 9): "fedavg:1,e=0.2",
        (2, 3): "tests.runtime.abandoning:Abandoning",
        (2, 8): "local:2",
    }
    close(run_job(train, 1, 4, MOMENTUM, switches), train_alone(4, MOMENTUM))


def test_two_that_meet_in_every_step_are_one_process_with_twice_the_batch() -> None:
    """SelSync(0) in both forms, FedAvg(1, one step) and DiLoCo(1, lr 1) are BSP under plain SGD."""
    switches = {(0, 3): "selsync:0,aggregate=gradients", (1, 0): "fedavg:1,e=0.16", (2, 0): "diloco:1,lr=1,momentum=0"}
    close(run_job(train, 2, 4, PLAIN, switches, policy="selsync:0"), train_alone(8, PLAIN))


def test_diloco_without_an_outer_momentum_is_local_sgd() -> None:
    """Also in fragments that are exchanged at the same steps, and with a momentum of the replicas."""
    expected, *_ = run_job(train, 2, 4, MOMENTUM, {}, policy="local:3")
    close(run_job(train, 2, 4, MOMENTUM, {}, policy="diloco:3,lr=1,momentum=0"), expected)


def test_a_quorum_loses_and_doubles_no_sample_across_switches() -> None:
    """Two of three make an outer step, and the third goes on with what it has learned for the next."""
    quorum = "diloco:3,quorum=2"
    policies = [quorum, "bsp", quorum, "asp", quorum]
    by_rank = run_job(switch_in_every_epoch, 3, policies, {}, policy=quorum)
    for number, after in enumerate(policies[1:]):
        epoch = [ranks[number] for ranks in by_rank]
        assert {seen.policy for seen in epoch} == {parse_policy(after).spec}
        assert all(torch.equal(seen.parameters, epoch[0].parameters) for seen in epoch)
        assert Counter(index for seen in epoch for index in seen.indices) == Counter(range(SAMPLES))


def test_replicas_that_never_meet_are_averaged_at_the_end_of_each_epoch() -> None:
    expected, *_ = run_job(train, 2, 4, MOMENTUM, {}, policy="local:100")
    close(run_job(train, 2, 4, MOMENTUM, {}, policy="selsync:inf"), expected)


@pytest.mark.parametrize("treatment", ["average", "reset"])
def test_states_of_optimizers_are_averaged_or_reset_with_the_replicas(treatment: str) -> None:
    """What two make of two steps each, against the same by hand."""
    found = run_job(train, 2, 12, MOMENTUM, {}, policy="local:2", averaged_state=treatment)
    close(found, by_hand(treatment))


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        ("local:3", {}),
        ("local:3", {"shards": 2, "averaged_state": "average"}),
        ("diloco:4,overlap=2,fragments=2", {"shards": 2}),
        ("fedavg:0.5,e=0.3", {}),
        ("local:3", {"compress": "topk:1"}),
    ],
)
def test_servers_sum_up_replicas_as_an_all_reduce_does(policy: str, settings: dict[str, Any]) -> None:
    expected, *_ = run_job(train, 2, 4, MOMENTUM, {}, policy=policy, **settings)
    found = run_job(train_with_sums, 2, 4, MOMENTUM, {}, policy=policy, averaging="server", **settings)
    close([parameters for parameters, _ in found], expected)
    assert "compress" in settings or all(sums > 0 for _, sums in found)


def train_with_sums(rank: int, *args: Any) -> tuple[Tensor, int]:
    """As `train`; and of how many vectors the servers have made sums."""
    with patch.object(SumThread, "launch", autospec=True, side_effect=SumThread.launch) as launch:
        return train(rank, *args), launch.call_count


def by_hand(policy: str) -> Tensor:
    """Local SGD(2) of two workers with mini-batches of 12, in one process."""
    models, data = [make_model(seed=0) for _ in range(2)], Numbered(48)
    optimizers = [make_optimizer(model, lr=0.1, momentum=0.9, weight_decay=0.01) for model in models]
    for _ in range(3):
        for start in (0, 24):
            for rank, (model, optimizer) in enumerate(zip(models, optimizers, strict=True)):
                own = slice(start + 12 * rank, start + 12 * rank + 12)
                step(model, optimizer, data.x[own], data.y[own])
        average_all(list(models[0].parameters()), list(models[1].parameters()))
        buffers = [[state["momentum_buffer"] for state in optimizer.state.values()] for optimizer in optimizers]
        if policy == "average":
            average_all(*buffers)
        else:
            for optimizer in optimizers:
                optimizer.state.clear()
    return flat(models[0])


def average_all(mine: Sequence[Tensor], theirs: Sequence[Tensor]) -> None:
    with torch.no_grad():
        for a, b in zip(mine, theirs, strict=True):
            a.copy_((a + b) / 2)
            b.copy_(a)


def die(rank: int, name: str) -> tuple[Tensor, Status | None]:
    """Train; the last rank dies in the first mini-batch of the second epoch, which every rank gets."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9)
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(2):
            for x, y, _ in session.loader(Numbered(SAMPLES), batch_size=2):
                if rank == 2 and epoch == 1:
                    os.kill(os.getpid(), signal.SIGKILL)
                step(model, optimizer, x, y)
        state = steer.status(steer.at(name)) if rank == 0 else None
    return flat(model), state


@pytest.mark.parametrize(
    ("policy", "averaging"),
    [
        ("selsync:0.01", "ring"),
        ("selsync:0.01", "server"),
        ("esync", "ring"),
        ("esync:blocking=false", "ring"),
        ("esync:blocking=false", "server"),
        ("tests.runtime.abandoning:Abandoning", "server"),
        ("diloco:4,overlap=2,fragments=2", "ring"),
        ("diloco:4,overlap=2,fragments=2", "server"),
    ],
)
def test_the_others_finish_when_one_dies(policy: str, averaging: str) -> None:
    name = f"dying-{uuid.uuid4().hex}"
    with job(die, 3, name, name=name, policy=policy, averaging=averaging) as running:
        first, second, _ = running.join()
    assert first.ok, first.traceback
    assert second.ok, second.traceback
    (parameters, state), (others_parameters, _) = first.value, second.value
    assert torch.equal(parameters, others_parameters)
    assert isinstance(state, Status)
    assert (state.samples, state.skipped) == (2 * SAMPLES, 0)
