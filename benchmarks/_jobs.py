"""Jobs of real workers for benchmarks: a coordinator, and worker processes that join it."""

import os
from collections.abc import Callable
from typing import Any

import msgspec

from polyrhythm.runtime.coordinator import process
from polyrhythm.runtime.launch.rendezvous import start_coordinator
from polyrhythm.runtime.wire.job_config import JobConfig, coordinator_address
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.testing.processes import run_workers


def job(name: str, work: Callable[..., Any], workers: int, policy: str, *arguments: Any) -> list[Any]:
    """Results of `work(rank, address, *arguments)` on the workers of one job."""
    settings = JobConfig(job=f"benchmark-{os.getpid()}-{name}", workers=workers, policy=policy)
    coordinator = start_coordinator(settings)
    try:
        return run_workers(work, workers, address_of(settings), *arguments, timeout_s=300)
    finally:
        coordinator.wait()


def join(rank: int, address: str) -> None:
    """Make this process a worker of the job."""
    os.environ |= {"POLYRHYTHM_COORDINATOR": address, "RANK": str(rank)}


def address_of(settings: JobConfig) -> str:
    """Where workers of this job find its coordinator, for `join`."""
    return msgspec.json.encode(Address(coordinator_address(settings.job), settings.job, settings.token)).decode()


def serve(_: int, settings: JobConfig, listener: Any) -> None:
    """Body of the process that forks coordinators, one after the other."""
    process.keep_serving(settings, [listener])
