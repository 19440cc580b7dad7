"""The same training with local SGD three times: as a session, with PyTorch's optimizer, with Accelerate's context.

Each function is a whole script, given its rank; what they share is not what they are compared for.
"""

import os
import time
from collections.abc import Iterable

import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

import polyrhythm

H, EPOCHS, BATCH, TRAIN = 8, 12, 32, 1408


def digits() -> tuple[TensorDataset, Tensor, Tensor]:
    """Training set, test inputs and test targets."""
    x, y = (torch.from_numpy(part) for part in load_digits(return_X_y=True))
    x = (x / 16).float()
    return TensorDataset(x[:TRAIN], y[:TRAIN]), x[TRAIN:], y[TRAIN:]


def make() -> tuple[nn.Module, torch.optim.Optimizer]:
    """Model and optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 1024), nn.ReLU(), nn.Linear(1024, 10))
    return model, torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


class Clock:
    """Throughput after the first epoch, which warms up, and accuracy at the end."""

    def __init__(self) -> None:
        self.seen, self.epochs, self.start = 0, 0, 0.0

    def epoch(self, loader: Iterable[tuple[Tensor, Tensor]]) -> Iterable[tuple[Tensor, Tensor]]:
        """One epoch's mini-batches, counted."""
        self.start = self.start if self.epochs != 1 else time.perf_counter()
        for x, y in loader:
            self.seen += len(x) if self.epochs else 0
            yield x, y
        self.epochs += 1

    def result(self, model: nn.Module) -> tuple[float, float]:
        """Samples a second of this worker, and the accuracy on the test set."""
        rate = self.seen / (time.perf_counter() - self.start)
        _, x, y = digits()
        with torch.no_grad():
            return rate, float((model(x).argmax(1) == y).float().mean())


def session(rank: int, place: str) -> tuple[float, float]:
    """With Polyrhythm."""
    os.environ |= {"POLYRHYTHM_COORDINATOR": place, "RANK": str(rank)}
    (model, optimizer), (train, *_), clock = make(), digits(), Clock()
    with polyrhythm.session(model, optimizer, policy=f"local:{H}", epochs=EPOCHS) as session:
        for _ in range(EPOCHS):
            for x, y in clock.epoch(session.loader(train, batch_size=BATCH)):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(x), y).backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    return clock.result(model)


def post_local_sgd(rank: int, place: str) -> tuple[float, float]:
    """With torch.distributed.optim.PostLocalSGDOptimizer, as its documentation has it."""
    from torch.distributed.algorithms.ddp_comm_hooks.post_localSGD_hook import PostLocalSGDState, post_localSGD_hook
    from torch.distributed.algorithms.model_averaging.averagers import PeriodicModelAverager
    from torch.distributed.optim import PostLocalSGDOptimizer

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": place, "RANK": str(rank), "WORLD_SIZE": "2"}
    dist.init_process_group("gloo")
    (model, local), (train, *_), clock = make(), digits(), Clock()
    wrapped = nn.parallel.DistributedDataParallel(model)
    subgroup, _ = dist.new_subgroups(group_size=1)  # type: ignore[no-untyped-call]
    state = PostLocalSGDState(None, subgroup, start_localSGD_iter=0)  # type: ignore[no-untyped-call]
    wrapped.register_comm_hook(state, post_localSGD_hook)
    optimizer = PostLocalSGDOptimizer(local, PeriodicModelAverager(period=H, warmup_steps=0))
    sampler: DistributedSampler[tuple[Tensor, ...]] = DistributedSampler(train)
    loader = DataLoader(train, BATCH, sampler=sampler)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in clock.epoch(loader):
            optimizer.zero_grad()
            nn.functional.cross_entropy(wrapped(x), y).backward()  # type: ignore[no-untyped-call]
            optimizer.step()  # type: ignore[no-untyped-call]
    result = clock.result(model)
    dist.destroy_process_group()
    return result


def accelerate(rank: int, place: str) -> tuple[float, float]:
    """With accelerate.local_sgd.LocalSGD, as its documentation has it."""
    from accelerate import Accelerator
    from accelerate.local_sgd import LocalSGD

    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": place, "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "ACCELERATE_USE_CPU": "true"}
    accelerator = Accelerator(cpu=True)
    (model, local), (train, *_), clock = make(), digits(), Clock()
    loader = DataLoader(train, BATCH, shuffle=True)
    wrapped, optimizer, loader = accelerator.prepare(model, local, loader)
    with LocalSGD(accelerator=accelerator, model=wrapped, local_sgd_steps=H, enabled=True) as averaging:
        for _ in range(EPOCHS):
            for x, y in clock.epoch(loader):
                with accelerator.accumulate(wrapped):
                    optimizer.zero_grad()
                    accelerator.backward(nn.functional.cross_entropy(wrapped(x), y))
                    optimizer.step()
                    averaging.step()
    result = clock.result(model)
    accelerator.end_training()
    return result
