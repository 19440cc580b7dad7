"""Sums of members on several hosts, on real processes: one sum with the same bits everywhere, whoever is where."""

import os
from hashlib import sha256
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.runtime.collectives.hosts import hierarchy
from polyrhythm.runtime.collectives.hosts.hierarchy import Hierarchy
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.nonraising_work import guard
from polyrhythm.runtime.collectives.ops import all_reduce, broadcast, launch_reduction, reduction
from polyrhythm.testing.processes import run_workers
from tests.runtime.pretended_hosts import live_on

TYPES = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 1e-2, torch.bfloat16: 1e-1, torch.int64: 0.0}
LENGTHS = (1, 7, 1000, 5000)
CHUNK = 4096


def generation_of(rank: int, port: int, hosts: tuple[int, ...]) -> Generation:
    live_on(hosts[rank])
    hierarchy.CHUNK = CHUNK  # type: ignore[misc]
    return Generation(TCPStore("127.0.0.1", port, is_master=False), "all", range(len(hosts)), rank)


def leave_together(generation: Generation) -> None:
    """Whoever ends first ends what others are still in."""
    through = [f"through/{member}" for member in range(generation.size)]
    generation._store.set(through[generation.rank], "")
    generation._store.wait(through)


def own_vectors(rank: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(rank)
    return [(100 * torch.randn(length, generator=generator)).to(dtype) for dtype in TYPES for length in LENGTHS]


def flat(generation: Generation, vector: Tensor) -> Tensor:
    """The sum of gloo's ring over all members."""
    group: Any = generation.backend(False)
    guard(group.allreduce([vector], reduction(ReduceOp.SUM)), generation.health, [vector]).wait()
    return vector


def sums_worker(rank: int, port: int, hosts: tuple[int, ...]) -> tuple[str, bool]:
    """All sums as a digest; whether they are those of the ring, but for rounding."""
    generation, own = generation_of(rank, port, hosts), own_vectors(rank)
    under_way = [(vector.clone(), vector) for vector in own]
    sums = [(launch_reduction(generation, total), total) for total, _ in under_way]
    for reduction_, _ in sums:
        reduction_.wait()
    good = all(
        torch.allclose(total, flat(generation, vector.clone()), rtol=TYPES[total.dtype], atol=100 * TYPES[total.dtype])
        for total, vector in under_way
    )
    largest = torch.tensor([rank, -rank])
    all_reduce(generation, largest, ReduceOp.MAX)
    assert generation.failure is None
    assert largest.tolist() == [len(hosts) - 1, 0]
    digest = sha256(b"".join(total.view(torch.uint8).numpy().tobytes() for total, _ in under_way)).hexdigest()
    leave_together(generation)
    return digest, good


@pytest.mark.parametrize("hosts", [(0, 0, 1, 1), (0, 0, 0, 1), (0, 1, 0, 1, 2)], ids=str)
def test_all_have_the_bits_of_one_sum(store: TCPStore, hosts: tuple[int, ...]) -> None:
    found = run_workers(sums_worker, len(hosts), store.port, hosts)
    assert [good for _, good in found] == [True] * len(hosts)
    assert len({digest for digest, _ in found}) == 1


def broadcasts_worker(rank: int, port: int, hosts: tuple[int, ...]) -> list[list[float]]:
    """What comes of a broadcast from each rank, of a short vector and a long one."""
    generation, found = generation_of(rank, port, hosts), []
    for source in range(len(hosts)):
        short, long = torch.full((2, 2), float(rank)), torch.full((3 * CHUNK,), float(rank))
        broadcast(generation, short, source)
        broadcast(generation, long, source)
        found.append([value for vector in (short, long) for value in sorted({*vector.view(-1).tolist()})])
    leave_together(generation)
    return found


def test_everyone_has_what_one_has(store: TCPStore) -> None:
    found = run_workers(broadcasts_worker, 5, store.port, (0, 1, 0, 1, 2))
    assert found == [[[float(source)] * 2 for source in range(5)]] * 5


def forking_worker(rank: int, port: int, hosts: tuple[int, ...]) -> tuple[int, int]:
    """Connections of a leader to the others, here and in a forked child."""
    generation = generation_of(rank, port, hosts)
    held = connections(generation)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, bytes([connections(generation)]))
        os._exit(0)
    os.waitpid(child, 0)
    total = torch.ones(1)
    all_reduce(generation, total)
    assert total.item() == len(hosts)
    leave_together(generation)
    return held, os.read(read, 1)[0]


def connections(generation: Generation) -> int:
    assert generation.shared is not None
    buffers = generation.shared._buffers
    assert isinstance(buffers, Hierarchy)
    found = list(buffers._leaders._sockets._connections()) if buffers._leaders is not None else []
    for _, connection in found:
        connection.close()
    return len(found)


def test_forked_children_do_not_hide_a_death(store: TCPStore) -> None:
    assert run_workers(forking_worker, 3, store.port, (0, 0, 1)) == [(1, 0), (0, 0), (1, 0)]
