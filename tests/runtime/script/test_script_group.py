"""What a script sends from one rank to another, beside the collectives of all."""

import re
import warnings
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import HashStore, TCPStore
from torch.distributed import distributed_c10d
from torch.nn.parallel import DistributedDataParallel as TorchDDP

from polyrhythm.errors import GroupError
from polyrhythm.runtime.script.script_group import ANYONE, BACKEND, ScriptGroup
from polyrhythm.runtime.script.wrapper import become_wrapper
from polyrhythm.testing.processes import run_workers


def messages(rank: int, port: int) -> dict[str, object]:
    """Two of three ranks send something to the first; what each was told of that."""
    launched: list[bool] = []
    messaged: list[int] = []
    ScriptGroup.launched = staticmethod(lambda _, for_all: launched.append(for_all))
    ScriptGroup.messaged = staticmethod(lambda _, other: messaged.append(other))
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=3)
    some = dist.new_group([0, 2])
    given, got = torch.full((2,), float(rank)), torch.zeros(2)
    came: list[object] = []
    if rank == 1:
        dist.send(given, 0)
    elif rank == 2:
        dist.send(given, 0, group=some)
    else:
        came += [dist.recv(got), got.tolist(), dist.recv(got, 2, group=some), got.tolist()]
    dist.barrier()
    return {"came": came, "messaged": messaged, "launched": launched}


def test_a_message_is_no_collective_of_all_ranks() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    first, second, third = run_workers(messages, 3, store.port)
    assert first["came"] == [1, [1.0, 1.0], 2, [2.0, 2.0]]
    assert [each["messaged"] for each in (first, second, third)] == [[ANYONE, 2], [0], [0]]
    assert {tuple(each["launched"]) for each in (first, second, third)} == {(True,)}


def outlives(rank: int, port: int) -> bool:
    """Meet one other rank; whether this is the one that is left when the other ends."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    dist.barrier()
    return rank == 0


def from_the_lost(rank: int, port: int) -> None:
    """Receive from a rank that has ended, and send to it."""
    if outlives(rank, port):
        with pytest.raises(GroupError, match=r"test_script_group.py:\d+: recv brings nothing: what another rank has"):
            dist.recv(torch.zeros(2), 1)
        with pytest.raises(GroupError, match="send reaches nobody: another rank is lost"):
            dist.send(torch.zeros(2), 1)


def test_a_message_of_a_rank_that_is_gone_is_no_message_of_zeros() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run_workers(from_the_lost, 2, store.port)


def gather_from_the_lost(rank: int, port: int) -> None:
    """Gather objects of a rank that has ended, and numbers, which stay this rank's own."""
    if outlives(rank, port):
        lost = r"test_script_group.py:\d+: allgather brings nothing: what another rank has for it is lost"
        with pytest.raises(GroupError, match=lost):
            dist.all_gather_object([None, None], {"mine": 1})
        with pytest.raises(GroupError, match=lost):
            dist.gather_object({"mine": 1}, [None, None])
        dist.gather_object({"mine": 1}, None, 1)
        dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.ones(2))


def test_objects_of_a_rank_that_is_gone_are_not_unpickled() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run_workers(gather_from_the_lost, 2, store.port)


def wrap_beside_the_lost(rank: int, port: int) -> None:
    """Wrap a model when the other rank has ended."""
    if outlives(rank, port):
        lost = r"test_script_group.py:\d+: DistributedDataParallel cannot be set up: another rank is lost"
        with pytest.raises(GroupError, match=lost):
            become_wrapper(TorchDDP.__new__(TorchDDP), torch.nn.Linear(2, 1), distributed_c10d._get_default_group(), {})


def test_what_torch_finds_in_the_memory_of_a_rank_that_is_gone_is_not_told() -> None:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    run_workers(wrap_beside_the_lost, 2, store.port)


def test_torchs_checkpoints_find_a_device_in_the_group() -> None:
    """`async_save` wants a group for the CPU, and a state is loaded by the device of the group."""
    group = ScriptGroup(HashStore(), 0, range(1))
    assert torch.device("cpu") in group._device_types
    with warnings.catch_warnings(action="ignore"):
        assert distributed_c10d._get_pg_default_device(group) == torch.device("cpu")


def mistakes(rank: int, port: int) -> dict[str, object]:
    """Wrong arguments on both ranks, odd tensors, and then a sum of different tensors."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    for_ever = timedelta(days=2000)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=2, timeout=for_ever)
    with pytest.raises(RuntimeError, match="invalid tensor size"):
        dist.all_gather([torch.zeros(2), torch.zeros(2)], torch.ones(3))
    total, nothing = torch.tensor([1.0 + rank]), torch.zeros(0)
    dist.all_reduce(total)
    dist.all_gather_into_tensor(torch.zeros(0), nothing)
    dist.reduce_scatter_tensor(nothing, torch.zeros(0))
    conjugate = torch.tensor([1j * (1 + rank)]).conj().imag
    dist.all_reduce(conjugate)
    negated, all_of_it = torch.tensor([1j]).conj().imag, torch.zeros(2)
    dist.all_gather_into_tensor(all_of_it, negated)
    assert all_of_it.tolist() == [-1.0, -1.0]
    parts = [torch.zeros(1) for _ in range(2)]
    dist.all_gather(parts, negated)
    assert torch.cat(parts).tolist() == [-1.0, -1.0]
    sent = torch.zeros(1)
    dist.recv(sent, 0) if rank else dist.send(negated, 1)
    assert sent.item() == -rank
    with pytest.raises(RuntimeError, match="contiguous"):
        dist.send(torch.zeros(4)[::2], 1 - rank)
    dist.all_reduce(total)
    told = []
    for length in (2 + rank, 1):  # of the second all are right, but the first has left them apart
        with pytest.raises(GroupError) as error:
            dist.all_reduce(torch.ones(length))
        told.append(str(error.value))
    with pytest.raises(GroupError):
        dist.all_reduce(torch.ones(1), async_op=True).wait()
    return {"total": total.item(), "conjugate": conjugate.item(), "told": told}


def test_a_script_hears_of_its_mistakes_and_goes_on_after_wrong_arguments() -> None:
    """Where nobody is lost no other generation comes, and each rank would have its own value from then on."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for result in run_workers(mistakes, 2, store.port):
        assert result["total"] == 6.0
        assert result["conjugate"] == -3.0
        for told in result["told"]:
            assert re.search(r"test_script_group.py:\d+: allreduce failed: .*; all ranks must call the same ", told)


def comes_late(rank: int, port: int, dtype: torch.dtype) -> str:
    """Sum up, and again when the other rank waits no more for this one; what this one is told."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group(BACKEND, store=store, rank=rank, world_size=2, timeout=timedelta(seconds=20))
    dist.all_reduce(torch.ones(1))
    if rank == 0:
        shorten_limits()
    else:
        store.wait(["late"])
    try:
        for _ in range(2):  # what the first wants of the other rank may be there
            dist.all_reduce(torch.ones(1, dtype=dtype))
    except GroupError as error:
        return str(error)
    finally:
        store.set("late", "")
    return ""


def shorten_limits() -> None:
    """Of what this rank waits for from now on: who still connects may take its time."""
    group = distributed_c10d._get_default_group()
    assert isinstance(group, ScriptGroup)
    assert group.generation is not None
    gloo: Any = group.generation.backend(on_gpu=False)
    gloo.set_timeout(timedelta(milliseconds=10))
    buffers: Any = group.generation.shared and group.generation.shared._buffers
    buffers._words._timeout_s = 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.int32])
def test_no_rank_is_lost_because_another_one_came_late(dtype: torch.dtype) -> None:
    """In shared memory and over gloo, who has waited says so and who has come late: its own value would be wrong."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    told = run_workers(comes_late, 2, store.port, dtype)
    for each in told:
        assert "within the timeout of init_process_group" in each
