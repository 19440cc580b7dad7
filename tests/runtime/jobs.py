"""Real jobs for tests: a coordinator and its workers, each a process of its own, and a task that says what has been
seen.
"""

import os
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from polyrhythm.runtime.coordinator import process
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.launch.rendezvous import COORDINATOR
from polyrhythm.runtime.server.shard import warm_up
from polyrhythm.runtime.wire.config_sources import told_early
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.testing.processes import ProcessOutcome, Workers, first_child, workers

COORDINATOR_PID = "TEST_COORDINATOR_PID"
"""Environment variable that tells a worker whom to kill."""

LIMIT_S = 60.0
"""No job of a test takes so long."""


@dataclass
class Job:
    """A job that runs."""

    settings: JobConfig
    coordinator: Workers
    ranks: Workers

    def join(self, leave: tuple[int, ...] = ()) -> list[ProcessOutcome]:
        """Outcomes of the workers; the coordinator must then end by itself."""
        outcomes = self.ranks.join(LIMIT_S, leave)
        (coordinator,) = self.coordinator.join(LIMIT_S)
        assert coordinator.ok, coordinator.traceback
        return outcomes

    @property
    def serving(self) -> int:
        """Process of the coordinator that serves now, where a keeper starts one after the other."""
        return first_child(self.coordinator.processes[0].pid or 0)

    @property
    def shard(self) -> int:
        """Process of the second server of parameters, which is forked from the coordinator."""
        return first_child(self.serving)


@contextmanager
def job(script: Callable[..., Any], count: int, *args: Any, name: str = "", **settings: Any) -> Iterator[Job]:
    """Start ``script(rank, *args)`` in `count` workers of a job of its own; with `max_coordinator_restarts`, under a
    keeper of coordinators.
    """
    given = dict.fromkeys(settings, "the test")
    made = JobConfig(**{"job": name or f"test-{uuid.uuid4().hex}", "workers": count, "given": given, **settings})
    body = keep_serving if "max_coordinator_restarts" in settings else serve
    with listen(coordinator_address(made.job)) as listener, workers(body, 1, made, listener) as coordinator:
        listener.close()
        with workers(take_part, count, made, coordinator.processes[0].pid, script, args) as ranks:
            yield Job(made, coordinator, ranks)


def run_job(script: Callable[..., Any], count: int, *args: Any, **settings: Any) -> list[Any]:
    """What ``script(rank, *args)`` returned in each worker."""
    with job(script, count, *args, **settings) as running:
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), "\n".join(outcome.traceback for outcome in outcomes)
    return [outcome.value for outcome in outcomes]


def keep_serving(_: int, settings: JobConfig, listener: Any) -> None:
    """Body of the process that forks coordinators."""
    assert process.keep_serving(settings, [listener]) == 0


def serve(_: int, settings: JobConfig, listener: Any) -> None:
    """Body of the coordinator."""
    coordinator = CoordinatorServer(settings, listener)
    warm_up()
    coordinator.run()


def take_part(
    rank: int, settings: JobConfig, coordinator: int, script: Callable[..., Any], args: tuple[Any, ...]
) -> Any:
    """Body of a worker, in the environment that a launcher makes."""
    address = Address(coordinator_address(settings.job), settings.job, settings.token)
    os.environ |= {
        "RANK": str(rank),
        COORDINATOR: msgspec.json.encode(address).decode(),
        COORDINATOR_PID: str(coordinator),
        **told_early(settings),
    }
    return script(rank, *args)


class Numbered(Dataset[tuple[Tensor, Tensor, int]]):
    """Samples of a fixed random classification task, each with its number."""

    def __init__(self, samples: int, features: int = 6, classes: int = 3) -> None:
        generator = torch.Generator().manual_seed(5)
        self.x = torch.randn(samples, features, generator=generator)
        self.y = (self.x @ torch.randn(features, classes, generator=generator)).argmax(1)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, int]:
        return self.x[index], self.y[index], index


def make_model(seed: int = 0) -> nn.Module:
    """A small network."""
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))


def make_optimizer(model: nn.Module, kind: str = "SGD", **options: Any) -> torch.optim.Optimizer:
    """An optimizer of torch by name."""
    made: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
    return made


def flat(model: nn.Module) -> Tensor:
    """A copy of all parameters and buffers."""
    return torch.cat([tensor.detach().reshape(-1).float() for tensor in model.state_dict().values()])


@dataclass
class Seen:
    """What one worker has seen of one epoch."""

    policy: str = ""
    indices: list[int] = field(default_factory=list)
    parameters: Tensor = field(default_factory=lambda: torch.empty(0))


def step(model: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor) -> float:
    """One ordinary training step; its loss."""
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(x), y)
    loss.backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    return loss.item()
