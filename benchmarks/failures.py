"""How soon the loss of a worker is noticed, and how soon the others go on.

Three workers train; one is killed, or stopped, in the middle of an epoch. Noticed is when the coordinator no longer
counts it as a member, and gone on when the others have completed further steps. Both are seen from outside, by asking
the coordinator again and again, so a few milliseconds of each are the question's.

Exits with 1 if a bar is missed.
"""

import logging
import os
import signal
import sys
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple

import msgspec
import torch
from rich.console import Console
from rich.table import Table
from torch import nn
from torch.utils.data import TensorDataset

import polyrhythm
from polyrhythm.runtime.coordinator.server import CoordinatorServer
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.rendezvous import wait_for_coordinator
from polyrhythm.runtime.wire.connection import listen
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.testing.processes import workers

ROUNDS, WORKERS, VICTIM = 5, 3, 2
COMPUTE_S = 0.005
HANG_S, PULSE_S = 1.0, 0.25
DEATH_BAR_S, HANG_BAR_S = 0.25, HANG_S + 2 * PULSE_S


class Case(NamedTuple):
    """What happens to one worker, under which policy."""

    policy: str
    signal_number: int
    loader_processes: int = 0

    @property
    def name(self) -> str:
        """For the table."""
        forked = ", forked loaders" if self.loader_processes else ""
        return f"{self.policy}{forked}, {signal.Signals(self.signal_number).name}"


CASES = [
    Case("bsp", signal.SIGKILL),
    Case("bsp", signal.SIGKILL, loader_processes=1),
    Case("local:8", signal.SIGKILL),
    Case("asp", signal.SIGKILL),
    Case("k-sync:3", signal.SIGKILL),
    Case("bsp", signal.SIGSTOP),
    Case("asp", signal.SIGSTOP),
]


def train(rank: int, address: str, loader_processes: int) -> None:
    """Steps without end."""
    os.environ |= {"POLYRHYTHM_COORDINATOR": address, "RANK": str(rank)}
    model = nn.Linear(64, 10)
    sgd = torch.optim.SGD(model.parameters(), lr=0.01)
    generator = torch.Generator().manual_seed(0)  # all ranks must have the same data
    data = TensorDataset(torch.randn(1_000_000, 64, generator=generator), torch.zeros(1_000_000, dtype=torch.long))
    forked: dict[str, Any] = {"num_workers": loader_processes, "multiprocessing_context": "fork"}
    with polyrhythm.session(model, sgd) as session:
        for x, y in session.loader(data, 16, collate_fn=arrays, **(forked if loader_processes else {})):
            time.sleep(COMPUTE_S)
            sgd.zero_grad()
            loss = nn.functional.cross_entropy(model(torch.as_tensor(x)), torch.as_tensor(y))
            loss.backward()  # type: ignore[no-untyped-call]
            sgd.step()


def arrays(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> list[Any]:
    """A mini-batch without tensors, whose shared memory would complain of the loader's death."""
    return [torch.stack(column).numpy() for column in zip(*rows, strict=True)]


def serve(_: int, settings: JobConfig) -> None:
    """The coordinator; that it loses workers is no news here."""
    logging.disable(logging.WARNING)
    CoordinatorServer(settings, listen(coordinator_address(settings.job))).run()


def lose_one(case: Case, number: int) -> tuple[float, float]:
    """Seconds until the loss is noticed, and until the others have gone on."""
    job = f"benchmark-{os.getpid()}-{number}-{CASES.index(case)}"
    settings = JobConfig(job=job, policy=case.policy, workers=WORKERS, hang_after=HANG_S, heartbeat_s=PULSE_S)
    address = msgspec.json.encode(Address(coordinator_address(job), job)).decode()
    with workers(serve, 1, settings) as coordinator:
        wait_for_coordinator(coordinator_address(job))
        times = watch(case, job, address)
        coordinator.join(timeout_s=60)
    return times


def watch(case: Case, job: str, address: str) -> tuple[float, float]:
    """Seconds until the loss is noticed, and until the others have gone on; then the job is ended."""
    with workers(train, WORKERS, address, case.loader_processes) as running:
        seconds_until(lambda: samples(job) > 50 * 16)
        running.kill(VICTIM, case.signal_number)
        noticed_s = seconds_until(lambda: VICTIM not in steer.status(steer.at(job)).members)
        before = samples(job)
        # More than what can have been under way, and what a synchronous mode may have completed before it stopped.
        going_on_s = seconds_until(lambda: samples(job) > before + 2 * WORKERS * 16)
    return noticed_s, noticed_s + going_on_s


def samples(job: str) -> int:
    """What the job has processed."""
    return steer.status(steer.at(job)).samples


def seconds_until(condition: Callable[[], bool]) -> float:
    """How long it takes."""
    start = time.perf_counter()
    while not condition():
        time.sleep(0.001)
    return time.perf_counter() - start


def main() -> str | None:
    """Which bars were missed."""
    rounds = [[lose_one(case, number) for case in CASES] for number in range(ROUNDS)]
    table = Table("case", "noticed (ms)", "bar (ms)", "others go on (ms)", title=f"medians of {ROUNDS} rounds")
    missed = []
    for case, results in zip(CASES, zip(*rounds, strict=True), strict=True):
        noticed, gone_on = (median(column) for column in zip(*results, strict=True))
        bar = HANG_BAR_S if case.signal_number == signal.SIGSTOP else DEATH_BAR_S
        table.add_row(case.name, f"{noticed * 1e3:.0f}", f"{bar * 1e3:.0f}", f"{gone_on * 1e3:.0f}")
        if noticed > bar:
            missed.append(case.name)
    Console().print(table)
    return f"missed: {', '.join(missed)}" if missed else None


if __name__ == "__main__":
    sys.exit(main())
