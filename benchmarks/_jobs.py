"""Jobs of real workers for benchmarks: a hub, and worker processes that join it."""

import os
from collections.abc import Callable
from typing import Any

import msgspec

from polyrhythm.runtime.control import Address
from polyrhythm.runtime.job_config import JobConfig, hub_address
from polyrhythm.runtime.rendezvous import start_hub
from polyrhythm.testing.processes import run_workers


def job(name: str, work: Callable[..., Any], workers: int, policy: str, *arguments: Any) -> list[Any]:
    """Results of `work(rank, address, *arguments)` on the workers of one job."""
    settings = JobConfig(job=f"benchmark-{os.getpid()}-{name}", workers=workers, policy=policy)
    hub = start_hub(settings)
    address = msgspec.json.encode(Address(hub_address(settings.job), settings.job)).decode()
    try:
        return run_workers(work, workers, address, *arguments, timeout_s=300)
    finally:
        hub.wait()


def join(rank: int, address: str) -> None:
    """Make this process a worker of the job."""
    os.environ |= {"POLYRHYTHM_HUB": address, "RANK": str(rank)}
