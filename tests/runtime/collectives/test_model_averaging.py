"""An all-reduce among real workers, sums over servers and the simulator's average come to the same in every `Sync`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import TypeAlias

import pytest
import torch
from torch import Tensor
from torch._C._distributed_c10d import TCPStore

from polyrhythm.core import Outer, Sync
from polyrhythm.runtime.collectives import model_averaging as averager
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.model_averaging import Averager, ContributionWeight
from polyrhythm.runtime.collectives.ops import LaunchSum, launch_sum
from polyrhythm.runtime.collectives.server_reduce import SumThread
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.testing.processes import run_workers
from polyrhythm.training.averaging import Buffers, Replica, average, average_buffers
from polyrhythm.training.flat import FlatLayout
from polyrhythm.training.optimizer import FlatOptimizer
from polyrhythm.training.server import GlobalParameters
from tests.runtime.ddp_models import network
from tests.runtime.summing_servers import summing_servers

ALL, ROUNDS, SIZE = (0, 1, 2), 6, 3
WAYS = ("ring", "a server", "two servers", "two servers over TCP")
NESTEROV = Outer(0.7, 0.9, nesterov=True)
SYNCS = {
    "parameters": Sync(ALL, "parameters"),
    "by samples": Sync(ALL, "parameters", (8.0, 24.0, 16.0)),
    "deltas by 1/n, normalised": Sync(ALL, "deltas", (1.0, 1 / 3, 1 / 2), outer=Outer(2.0 * (1 + 1 / 3 + 1 / 2) / 3)),
    "a subgroup that all adopt": Sync((2, 0), "parameters", (1.0, 3.0), adopters=ALL),
    "a subgroup for itself": Sync((0, 1), "deltas", outer=Outer(0.5)),
    "others adopt": Sync((0, 1), "deltas", adopters=(0, 2), outer=NESTEROV),
    "heavy ball": Sync(ALL, "deltas", outer=Outer(0.5, 0.8)),
    "overlapped": Sync(ALL, "deltas", outer=NESTEROV, delay=2),
    "fragments": Sync(ALL, "deltas", outer=NESTEROV, fragment=(0, 3)),
    "fragments, overlapped, weighted": Sync(ALL, "deltas", (1.0, 2.0, 5.0), outer=NESTEROV, fragment=(0, 2), delay=3),
}

Found: TypeAlias = list[dict[tuple[str, str], Tensor]]
"""Of each worker, by way and name."""


def rounds(sync: Sync) -> Iterator[tuple[int, Sync | None]]:
    """An exchange after every second step; fragments take turns."""
    for step in range(2 * ROUNDS):
        if step % 2 == 0:
            yield step, None
        else:
            fragment = sync.fragment and ((step // 2) % sync.fragment[1], sync.fragment[1])
            yield step, replace(sync, fragment=fragment)


def moves(worker: int, step: int, size: int) -> Tensor:
    """What a local step of this worker adds to its parameters and buffers."""
    return torch.randn(size, generator=torch.Generator().manual_seed(100 * step + worker))


def among_workers(rank: int, port: int, servers: dict[str, list[str]]) -> dict[tuple[str, str], Tensor]:
    """The replica of this worker at the end, its buffers after it, by way and `Sync`."""
    store = TCPStore("127.0.0.1", port, is_master=False)
    generation = Generation(store, "all", ALL, rank)
    averager.BLOCK = 1000  # several blocks of these few parameters
    addresses = {way: (Address(first, "job", "secret"), others) for way, (first, *others) in servers.items()}
    threads = {way: SumThread(first, rank, others) for way, (first, others) in addresses.items()}
    launches: dict[str, LaunchSum] = {"ring": launch_sum}
    launches |= {way: thread.launch for way, thread in threads.items()}
    found = {(way, name): replicate(generation, SYNCS[name], launches[way]) for way in WAYS for name in SYNCS}
    if store.add("through", 1) == SIZE:  # the end of a member is a death for whom still waits
        store.set("all", "through")
    store.wait(["all"])
    for thread in threads.values():
        thread.stop()
    return found


def replicate(generation: Generation, sync: Sync, launch: LaunchSum) -> Tensor:
    model = network()
    tensors = [*model.parameters(), *(buffer for buffer in model.buffers() if buffer.is_floating_point())]
    layout = FlatLayout.of({str(index): tensor for index, tensor in enumerate(tensors)})
    own = Averager(model, launch=launch)
    own.start()
    for step, decided in rounds(sync):
        layout.add(moves(generation.rank, step, layout.size), tensors)
        own.merge(step)
        if decided is not None:
            own.combine(generation, ContributionWeight.of(decided, generation.rank), step)
            own.merge(step)
    return layout.gather(tensors, torch.empty(layout.size))


def by_server(sync: Sync) -> list[Tensor]:
    """The same, as the simulator does it."""
    model = network()
    vector = torch.cat([parameter.detach().reshape(-1) for parameter in model.parameters()])
    layout, size = FlatLayout.of({"w": vector}), len(vector)
    server = GlobalParameters(vector, FlatOptimizer(torch.optim.SGD, {"lr": 1.0}, vector, layout))
    replicas = [Replica.of(server) for _ in ALL]
    floating = torch.cat([buffer for buffer in model.buffers() if buffer.is_floating_point()])
    buffers = [Buffers(floating.clone(), []) for _ in ALL]
    for step, decided in rounds(sync):
        for worker, (replica, own) in enumerate(zip(replicas, buffers, strict=True)):
            move = moves(worker, step, size + len(floating))
            replica.step(-move[:size])
            own.vector += move[size:]
            buffers[worker] = replica.arrived() or own
        if decided is not None:
            exchange(server, replicas, buffers, decided)
    return [torch.cat([replica.vector, own.vector]) for replica, own in zip(replicas, buffers, strict=True)]


def exchange(server: GlobalParameters, replicas: list[Replica], buffers: list[Buffers], sync: Sync) -> None:
    adopters = sync.adopters or sync.workers
    average(
        server,
        [replicas[worker] for worker in sync.workers],
        sync.weights,
        outer=sync.outer,
        adopters=[replicas[worker] for worker in adopters],
        fragment=sync.fragment,
        delay=sync.delay,
    )
    mean = average_buffers([buffers[worker] for worker in sync.workers], sync.weights)
    for worker in adopters:
        buffers[worker] = replicas[worker].expect(mean, sync.delay) or buffers[worker]


@pytest.fixture(scope="module")
def found() -> Iterator[Found]:
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with summing_servers("unix") as one, summing_servers("unix", "unix") as two, summing_servers("tcp", "tcp") as tcp:
        servers = dict(zip(WAYS[1:], (one, two, tcp), strict=True))
        yield run_workers(among_workers, SIZE, store.port, servers, timeout_s=180.0)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", SYNCS)
def test_real_workers_and_the_simulator_come_to_the_same(found: Found, way: str, name: str) -> None:
    expected = by_server(SYNCS[name])
    for worker in ALL:
        torch.testing.assert_close(found[worker][way, name], expected[worker], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
def test_everyone_gets_the_same_bits(found: Found, way: str) -> None:
    first, *others = (worker[way, "heavy ball"] for worker in found)
    assert all(torch.equal(other, first) for other in others)
