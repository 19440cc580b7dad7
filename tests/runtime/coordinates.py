"""A job whose exactness is read from its weights: each sample of each epoch is a parameter of its own.

It is zero until a step with this sample is in the parameters, and the worker's part of a step after it; more if the
sample was made twice.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.testing.coordinates import SampleAttempts, train_attempts
from tests.runtime.jobs import LIMIT_S, Job

MOST_MISSED = 20
"""So often in a row a job that goes on may leave a question without an answer."""

HELD = 0.85
"""Share of the last epoch after which a job waits for its test."""


def hold(session: Any, epochs: int, samples: int, until: str) -> None:
    """Wait in the last part of a job until this file is there: all that is to happen to the job has."""
    while until and session.samples >= (epochs - 1 + HELD) * samples and not Path(until).exists():
        time.sleep(0.005)


def train(
    rank: int, epochs: int, samples: int, batch_size: int, compute_s: float, until: str = "", **given: Any
) -> Tensor:
    """Train to the end; the parameters. See `hold` for `until`."""
    model = SampleAttempts(epochs, samples)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, optimizer, **given) as session:
        held = partial(hold, session, epochs, samples, until)
        train_attempts(session, model, optimizer, batch_size, compute_s, after_step=held)
    return model.weight.detach()[..., 0].clone()


def trouble(weights: Iterable[Tensor], sizes: Iterable[int]) -> str:
    """What is wrong with the parameters that the workers have at the end of a job that ran on so many; empty: nothing.

    Two runs must have numbers of workers such that no sum of parts of one is a part of the other.
    """
    first, *others = weights
    if any(not torch.equal(first, other) for other in others):
        return "the workers differ"
    parts = torch.tensor([1.0 / size for size in sizes])
    right = torch.isclose(first[..., None], parts).any(-1)
    missing, wrong = int((first == 0).sum()), int((~right & (first != 0)).sum())
    return f"{missing} samples are in no parameter, {wrong} were made more than once" if missing or wrong else ""


def await_samples(running: Job, count: float, limit_s: float = LIMIT_S) -> bool:
    """Until the job has processed so many samples; whether it has, or has ended before."""
    return await_status(running.settings.job, lambda state: state.samples >= count, f"no {count:g} samples", limit_s)


def await_status(job: str, wanted: Callable[[Status], bool], otherwise: str, limit_s: float = LIMIT_S) -> bool:
    """Until a job is as wanted; whether it is, or has ended before."""
    deadline, missed = time.monotonic() + limit_s, 0
    while time.monotonic() < deadline:
        try:
            state = steer.status(steer.at(job))
        except PolyrhythmError:
            missed += 1  # it may just have been killed, and another one follows
            if missed > MOST_MISSED:
                return False
            time.sleep(0.05)
            continue
        missed = 0
        if wanted(state):
            return True
        time.sleep(0.005)
    raise AssertionError(f"{otherwise} after {limit_s:g} s")


def kill_everything(running: Job) -> None:
    """kill -9 of the coordinator and all workers."""
    processes = [*running.coordinator.processes, *running.ranks.processes]
    for process in processes:
        os.kill(process.pid or 0, signal.SIGKILL)
    for process in processes:
        process.join()
