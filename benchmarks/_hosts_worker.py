"""Workers of `hierarchy.py`: a script that knows only torch, or sums one after another; each prints what its host sent.

0.8 M parameters (3.2 MB) in five layers. Of every host the first worker looks after each step how many bytes have left
the host so far.
"""

import json
import os
import sys
import time
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

FEATURES, WIDTH, CLASSES, BATCH = 64, 512, 10, 16
NUMBERS = 826_000
SENT = Path("/sys/class/net/eth0/statistics/tx_bytes")
FLAT = "BENCHMARK_FLAT"
"""Variable that keeps members from finding out that they are on one host."""


def sent() -> int:
    return int(SENT.read_text())


def no_host_in_common() -> None:
    from polyrhythm.runtime.collectives.hosts import host_map

    host_map.common_ground = lambda: ""


def train(steps: int) -> None:
    """So many steps of an ordinary script."""
    dist.init_process_group("gloo")
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(steps * BATCH * dist.get_world_size(), FEATURES, generator=generator)
    data = TensorDataset(x, (x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1))
    torch.manual_seed(0)
    widths = [FEATURES, WIDTH, WIDTH, WIDTH, WIDTH, CLASSES]
    layers = [layer for sizes in pairwise(widths) for layer in (nn.Linear(*sizes), nn.ReLU())]
    model = DistributedDataParallel(nn.Sequential(*layers[:-1]))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9)
    marks = []
    for inputs, labels in DataLoader(data, BATCH, sampler=DistributedSampler(data)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        marks.append((time.perf_counter(), sent()))
    if os.environ["LOCAL_RANK"] == "0":
        print(f"marks {json.dumps(marks)}", flush=True)
    dist.barrier()
    dist.destroy_process_group()


def add_up(rank: int, size: int, head: str, rounds: int, first: bool) -> None:
    """Sums of one vector, as fast as they go."""
    from torch._C._distributed_c10d import TCPStore

    from polyrhythm.runtime.collectives.membership import Generation
    from polyrhythm.runtime.collectives.ops import all_reduce

    store = TCPStore(head, 5000, is_master=rank == 0, wait_for_workers=False, timeout=timedelta(minutes=1))
    generation, vector = (
        Generation(store, "all", range(size), rank, connect_timeout=timedelta(minutes=1)),
        torch.ones(NUMBERS),
    )
    marks = []
    for _ in range(rounds):
        all_reduce(generation, vector.fill_(1.0))
        marks.append((time.perf_counter(), sent()))
    if first:
        print(f"marks {json.dumps(marks)}", flush=True)
    store.add("through", 1)
    while store.add("through", 0) < size:  # whoever goes is a death for those who still add up
        time.sleep(0.05)
    generation.close()
    time.sleep(1.0 if rank == 0 else 0.0)  # it has the store


if __name__ == "__main__":
    torch.set_num_threads(1)
    if os.environ.get(FLAT):
        no_host_in_common()
    match sys.argv[1:]:
        case ["sums", rank, size, head, rounds, first]:
            add_up(int(rank), int(size), head, int(rounds), first == "first")
        case [steps]:
            train(int(steps))
