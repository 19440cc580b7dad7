"""The switchable group against plain DistributedDataParallel, on real gloo processes."""

import threading
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.algorithms.join import Join

import polyrhythm.runtime.collectives.switchable_group
from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives import model_averaging as averager
from polyrhythm.runtime.collectives.hosts import host_map
from polyrhythm.runtime.collectives.nonraising_work import GuardedWork
from polyrhythm.runtime.collectives.shared.exchanges import SharedWork
from polyrhythm.runtime.collectives.switchable_group import SwitchGroup
from polyrhythm.testing.processes import run_workers
from tests import proc
from tests.runtime.ddp_models import Branches, Trainer, digest, equal, network

KINDS: dict[str, Callable[[dist.ProcessGroup | None, int], Trainer]] = {
    "batch norm": lambda group, seed: Trainer(group, seed),
    "no buffers": lambda group, seed: Trainer(group, seed, network(batch_norm=False)),
    "static graph": lambda group, seed: Trainer(group, seed, static_graph=True),
    "bucket views": lambda group, seed: Trainer(group, seed, gradient_as_bucket_view=True),
    "long buckets": lambda group, seed: Trainer(group, seed, network(width=300)),
    "long bucket views": lambda group, seed: Trainer(group, seed, network(width=300), gradient_as_bucket_view=True),
    "unused parameters": lambda group, seed: Trainer(group, seed, Branches(), find_unused_parameters=True),
    "fp16 hook": lambda group, seed: with_fp16_hook(Trainer(group, seed)),
}


def with_fp16_hook(trainer: Trainer) -> Trainer:
    trainer.ddp.register_comm_hook(trainer.ddp.process_group, fp16_compress_hook)
    return trainer


def connect(rank: int, size: int, port: int) -> tuple[TCPStore, SwitchGroup]:
    """A job whose default group is plain gloo, and a switchable group beside it."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=size)
    group = dist.new_group(backend=polyrhythm.runtime.collectives.switchable_group.BACKEND)
    assert isinstance(group, SwitchGroup)
    return store, group


def train(trainer: Trainer) -> list[torch.Tensor]:
    """Steps, of which one accumulates two batches."""
    for step in range(5):
        trainer.optimizer.zero_grad()
        with trainer.ddp.no_sync() if step == 3 else nullcontext():
            trainer.backward()
        if step == 3:
            trainer.backward()
        trainer.optimizer.step()
    return trainer.values()


def bsp_worker(rank: int, size: int, port: int) -> dict[str, bool]:
    _, group = connect(rank, size, port)
    same = {name: equal(train(kind(None, rank)), train(kind(group, rank))) for name, kind in KINDS.items()}
    same["uneven inputs"] = equal(uneven(None, rank), uneven(group, rank))
    assert group.failure is None
    return same


def uneven(group: dist.ProcessGroup | None, rank: int) -> list[torch.Tensor]:
    trainer = Trainer(group, rank)
    with Join([trainer.ddp]):
        trainer.steps(3 + rank)
    return trainer.values()


@pytest.mark.parametrize("size", [2, 3])
def test_bsp_has_the_bits_of_plain_ddp(store: TCPStore, size: int) -> None:
    assert run_workers(bsp_worker, size, size, store.port) == [dict.fromkeys([*KINDS, "uneven inputs"], True)] * size


def apart_worker(rank: int, size: int, port: int) -> tuple[bool, set[bool]]:
    """On a host of its own: whether it has plain DDP's bits, and whether futures of buckets end in this thread."""
    host_map.common_ground = lambda: ""
    own_thread, original = set[bool](), GuardedWork.end

    def end(work: GuardedWork) -> None:
        own_thread.add(threading.current_thread() is threading.main_thread())
        original(work)

    GuardedWork.end = end  # type: ignore[method-assign, assignment]
    _, group = connect(rank, size, port)
    assert group.generation is not None
    assert group.generation.shared is None
    kind = KINDS["no buffers"]
    return equal(train(kind(None, rank)), train(kind(group, rank))), own_thread


@pytest.mark.parametrize("size", [2, 3])
def test_between_hosts_a_backward_pass_ends_its_buckets_in_its_own_thread(store: TCPStore, size: int) -> None:
    assert run_workers(apart_worker, size, size, store.port) == [(True, {True})] * size


def kinds_apart_worker(rank: int, size: int, port: int, tells: bool) -> dict[str, bool]:
    """On a host of its own: whether each kind has plain DDP's bits, if the group is told where steps end or not."""
    host_map.common_ground = lambda: ""
    _, group = connect(rank, size, port)
    same = {}
    for name, kind in KINDS.items():
        plain, ours = kind(None, rank), kind(group, rank)
        if tells:
            ours.optimizer.register_step_post_hook(lambda *_: group.step())
        same[name] = equal(train(plain), train(ours))
    assert group.failure is None
    return same


@pytest.mark.parametrize("tells", [False, True])
def test_between_hosts_every_kind_has_the_bits_of_plain_ddp(store: TCPStore, tells: bool) -> None:
    """A static graph asks for all of its sums at the end of its first pass, and waits for them there."""
    assert run_workers(kinds_apart_worker, 2, 2, store.port, tells) == [dict.fromkeys(KINDS, True)] * 2


def sums_worker(rank: int, size: int, port: int) -> list[bool]:
    """Whether sums of vectors of several lengths and types have the bits of gloo's."""
    _, group = connect(rank, size, port)
    assert group.generation is not None
    generator, equal_bits = torch.Generator().manual_seed(rank), []
    for dtype in (torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64):
        for length in (1, 2, 7, 17, 1000, 4097, 131_073, 1_000_003):
            own = (100 * torch.randn(length, generator=generator)).to(dtype)
            gloos = own.clone()
            assert group.generation.in_memory("allreduce", [own], None)
            group.allreduce([own]).wait()
            dist.all_reduce(gloos)
            equal_bits.append(torch.equal(own, gloos))
    return equal_bits


@pytest.mark.parametrize("size", [2, 3, 4, 9])
def test_sums_in_shared_memory_have_the_bits_of_gloo(store: TCPStore, size: int) -> None:
    assert run_workers(sums_worker, size, size, store.port) == [[True] * 40] * size


def phases_worker(rank: int, size: int, port: int) -> dict[str, Any]:
    _, group = connect(rank, size, port)
    return {name: phases(name, kind(group, rank), group, rank) for name, kind in KINDS.items()}


def phases(name: str, trainer: Trainer, group: SwitchGroup, rank: int) -> tuple[str, str]:
    """Synchronous mode, then steps of one's own and an evaluation on one rank, then synchronous mode on a new group."""
    trainer.steps(1)
    group.set_local()
    trainer.steps(2 + 3 * rank)
    if rank == 0:
        with torch.no_grad():
            trainer.ddp(trainer.batch())
    apart = digest(trainer.model.parameters())
    generation = group.set_generation(group.members, f"{name}/1")
    trainer.ddp.require_forward_param_sync = True  # which an evaluation takes back, and then others wait
    averager.Averager(trainer.model).mean(generation)
    trainer.optimizer.state.clear()
    trainer.steps(3)
    assert group.failure is None, group.failure
    return apart, digest(trainer.model.parameters())


def test_unequal_steps_between_two_lockstep_phases(store: TCPStore) -> None:
    first, second = run_workers(phases_worker, 2, 2, store.port)
    for name in KINDS:
        (apart, together), (theirs_apart, theirs_together) = first[name], second[name]
        assert apart != theirs_apart, name
        assert together == theirs_together, name


def two_groups_worker(rank: int, size: int, port: int) -> tuple[list[float], bool, int]:
    """One of two groups is given up: sums of the other, whether the one has failed, and the devices made for it."""
    _, group = connect(rank, size, port)
    devices = gloo_threads()
    other = dist.new_group(backend="polyrhythm")
    assert isinstance(other, SwitchGroup)
    sums = []
    for step in range(2):
        value = torch.tensor([float(rank + step)])
        group.allreduce([value]).wait()
        sums.append(value.item())
        other.abort("enough of it")
    return sums, other.failure is not None, gloo_threads() - devices


def gloo_threads() -> int:
    """Threads of gloo's devices in this process."""
    threads = [proc.read(task / "comm").strip() for task in Path("/proc/self/task").iterdir()]
    return threads.count("gloo_tcp_loop")


def test_groups_share_a_device_and_fail_by_themselves(store: TCPStore) -> None:
    assert run_workers(two_groups_worker, 2, 2, store.port) == [([1.0, 3.0], True, 0)] * 2


def meanwhile_worker(rank: int, size: int, port: int) -> list[int]:
    """Sums, each with the number of calls so far, where the call comes in the last of two that are usual."""
    _, group = connect(rank, size, port)
    calls: list[int] = []
    seen = []
    for step in range(3):
        if step == 1:
            group.meanwhile = lambda: calls.append(1)
        for _ in range(2):
            group.allreduce([torch.ones(1)]).wait()
            seen.append(len(calls))
        group.step()
    return seen


def test_what_is_done_meanwhile_is_done_once_in_the_last_collective_of_a_step(store: TCPStore) -> None:
    assert run_workers(meanwhile_worker, 2, 2, store.port) == [[0, 0, 0, 1, 1, 1]] * 2


def beside_worker(rank: int, size: int, port: int) -> list[int]:
    """Sums, each with the number of calls so far."""
    _, group = connect(rank, size, port)
    calls: list[int] = []
    group.beside = lambda: calls.append(1)
    seen = []
    for _ in range(3):
        for _ in range(2):
            group.allreduce([torch.ones(1)]).wait()
            seen.append(len(calls))
        group.step()
    return seen


def test_what_is_done_beside_is_done_in_the_last_collective_of_each_step(store: TCPStore) -> None:
    """Once it is known which that is."""
    assert run_workers(beside_worker, 2, 2, store.port) == [[0, 0, 0, 1, 1, 2]] * 2


def script_worker(rank: int, port: int) -> dict[str, Any]:
    """Collectives of a script on the default group, in synchronous mode, apart, and in synchronous mode among fewer."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("polyrhythm", store=store, rank=rank, world_size=3)
    group = dist.group.WORLD
    assert isinstance(group, SwitchGroup)
    together = use_everything(rank)
    group.set_local()
    apart = use_everything(rank)
    with pytest.raises(UsageError, match="send and recv need the other worker"):
        dist.send(torch.zeros(1), group_dst=(rank + 1) % 3)
    group.set_generation([2, 0], "fewer") if rank != 1 else group.set_local([2, 0])
    fewer = (dist.get_rank(), dist.get_world_size(), group.getSize(), use_everything(rank) if rank != 1 else None)
    group.shutdown()
    return {"together": together, "apart": apart, "fewer": fewer}


def use_everything(rank: int) -> dict[str, Any]:
    size, me = dist.get_world_size(), torch.tensor([float(rank)])
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, f"rank {rank}")
    gathered = [torch.zeros(1) for _ in range(size)]
    dist.all_gather(gathered, me)
    together = torch.zeros(size)
    dist.all_gather_into_tensor(together, me)
    part = torch.zeros(1)
    dist.reduce_scatter_tensor(part, torch.arange(float(size)))
    piece = torch.zeros(1)
    dist.reduce_scatter(piece, list(torch.arange(float(size)).view(-1, 1)))
    total, root = me.clone(), me.clone()
    dist.all_reduce(total)
    dist.broadcast(root, group_src=0)
    collected = [torch.zeros(1) for _ in range(size)] if dist.get_rank() == 0 else None
    dist.gather(me, collected, group_dst=0)
    dealt = torch.zeros(1)
    dist.scatter(dealt, list(torch.arange(float(size)).view(-1, 1)) if dist.get_rank() == 0 else None, group_src=0)
    neighbour = torch.zeros(1)
    if together_now():
        receipt = dist.irecv(neighbour, group_src=(dist.get_rank() - 1) % size)
        dist.send(me, group_dst=(dist.get_rank() + 1) % size)
        assert receipt is not None
        receipt.wait()
    dist.barrier()
    return {
        "neighbour": neighbour.item(),
        "objects": objects,
        "all_gather": [t.item() for t in gathered],
        "all_gather_into_tensor": together.tolist(),
        "reduce_scatter": (part.item(), piece.item()),
        "all_reduce": total.item(),
        "broadcast": root.item(),
        "gather": collected and [t.item() for t in collected],
        "scatter": dealt.item(),
    }


def together_now() -> bool:
    return isinstance(dist.group.WORLD, SwitchGroup) and dist.group.WORLD.generation is not None


def test_the_collectives_of_a_script(store: TCPStore) -> None:
    workers = run_workers(script_worker, 3, store.port)
    for rank, worker in enumerate(workers):
        assert worker["together"] == {
            "neighbour": (rank - 1) % 3,
            "objects": ["rank 0", "rank 1", "rank 2"],
            "all_gather": [0.0, 1.0, 2.0],
            "all_gather_into_tensor": [0.0, 1.0, 2.0],
            "reduce_scatter": (3.0 * rank, 3.0 * rank),
            "all_reduce": 3.0,
            "broadcast": 0.0,
            "gather": [0.0, 1.0, 2.0] if rank == 0 else None,
            "scatter": float(rank),
        }
        assert worker["apart"] == {
            "neighbour": 0.0,
            "objects": [f"rank {rank}"] * 3,
            "all_gather": [rank] * 3,
            "all_gather_into_tensor": [rank] * 3,
            "reduce_scatter": (rank, rank),
            "all_reduce": rank,
            "broadcast": rank,
            "gather": [rank] * 3 if rank == 0 else None,
            "scatter": 0.0 if rank else rank,
        }
    assert workers[2]["fewer"][:3] == (0, 2, 2)
    assert workers[0]["fewer"][:3] == (1, 2, 2)
    assert workers[0]["fewer"][3]["all_gather"] == [2.0, 0.0]
    assert workers[1]["fewer"][1:3] == (2, 1)


def last_of_a_step(rank: int, size: int, port: int) -> list[float | None]:
    """What is in the tensors of two steps' collectives as these are launched; None if that is still to come."""
    _, group = connect(rank, size, port)
    group.set_generation(range(size), "generation-1")
    seen = []
    for _ in range(2):
        for _ in range(2):
            tensor = torch.ones(1)
            work = group.allreduce([tensor])
            seen.append(None if isinstance(work, GuardedWork | SharedWork) else tensor.item())
            work.wait()
            assert tensor.item() == size
        group.step()
    return seen


@pytest.mark.parametrize("size", [2, 3])
def test_the_last_collective_of_a_step_has_ended_when_it_is_launched(store: TCPStore, size: int) -> None:
    """As far as it is known from the step before which one is the last."""
    for seen in run_workers(last_of_a_step, size, size, store.port):
        assert seen == [None, None, None, size]


def swapped(rank: int, port: int) -> tuple[float, str | None]:
    """What comes from the other one, to whom something is sent where a step's last collective is expected."""
    _, group = connect(rank, 2, port)
    group.set_generation([0, 1], "generation-1")
    group.allreduce([torch.ones(1)]).wait()
    group.step()
    theirs = torch.zeros(1)
    sent = group.send([torch.full((1,), float(rank))], 1 - rank, 0)
    received = group.recv([theirs], 1 - rank, 0)
    sent.wait()
    received.wait()
    return theirs.item(), group.failure


def test_nobody_waits_for_what_has_been_sent_before_receiving(store: TCPStore) -> None:
    """It arrives when the other one receives, who would wait, too."""
    assert run_workers(swapped, 2, store.port) == [(1.0, None), (0.0, None)]
