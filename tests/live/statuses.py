"""What coordinators say in these tests."""

from typing import Any

from polyrhythm.runtime.wire.control_protocol import JobEvent, Status, WorkerStatus
from polyrhythm.telemetry.stragglers import Lateness


def status(time_s: float = 0.0, samples: int = 0, **more: Any) -> Status:
    """A job under asp, in its first epoch of 1000 samples."""
    usual = {
        "policy": "asp",
        "phase": 1,
        "epoch": 0,
        "members": (0, 1),
        "skipped": 0,
        "version": samples,
        "applied": samples,
        "dropped": {},
        "job": "fruit",
        "planned": 2,
        "dataset_samples": 1000,
        "done": samples,
    }
    return Status(**{**usual, "time_s": time_s, "samples": samples, **more})


def worker(rank: int, samples: int = 0, reported_s: float | None = None, **more: Any) -> WorkerStatus:
    return WorkerStatus(rank, samples=samples, reported_s=reported_s, **more)


def arrival(steps: int, compute_s: float, transfer_s: float = 0.0, wait_s: float = 0.0, **more: Any) -> Lateness:
    return Lateness(steps, compute_s, transfer_s, wait_s, **more)


def event(number: int, kind: Any = "switch", text: str = "to ssp:3", time_s: float = 1.0) -> JobEvent:
    return JobEvent(number, time_s, kind, text)
