"""A coordinator that is killed about the time when training diverges: the job still goes back, and on under BSP."""

import math
import os
import signal
from collections import Counter
from threading import Event, Thread
from typing import Any

import pytest
import torch

import polyrhythm
from polyrhythm.testing.processes import first_child
from tests.runtime.jobs import COORDINATOR_PID, Numbered, flat, job, make_model, make_optimizer, step

SAMPLES, BATCH, EPOCHS, WORKERS = 60, 3, 3, 2


def signal_coordinator(number: int) -> None:
    os.kill(first_child(int(os.environ[COORDINATOR_PID])), number)


def explode(rank: int, when: str) -> dict[str, Any]:
    """Rank 1 sees no numbers in a step of the second epoch, and kills the coordinator then or when the job has gone
    back.
    """
    model = make_model()
    optimizer = make_optimizer(model, lr=0.05, momentum=0.9)
    seen, killed, went_back = Counter[int](), False, False
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            seen.clear()
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=BATCH)):
                if session.policy == "bsp" and not went_back:
                    went_back = True
                    seen.clear()
                ruined = (rank, epoch, number, went_back) == (1, 1, 0, False)
                step(model, optimizer, x * math.nan if ruined else x, y)
                if not killed and (ruined if when == "after" else rank == 1 and went_back):
                    signal_coordinator(signal.SIGKILL)
                    killed = True
                seen.update(index.tolist())
    return {"end": flat(model), "seen": seen, "policy": session.policy, "killed": killed}


@pytest.mark.parametrize("when", ["after", "back"])
@pytest.mark.parametrize("doomed", ["asp", "local:4", "esync"])
def test_the_job_goes_back_although_its_coordinator_dies(doomed: str, when: str) -> None:
    settings: dict[str, Any] = {"policy": doomed, "epochs": EPOCHS, "on_divergence": "rollback"}
    with job(explode, WORKERS, when, max_coordinator_restarts=9, snapshot="0.1s", **settings) as running:
        outcomes = running.join()
    assert all(outcome.ok for outcome in outcomes), [outcome.traceback for outcome in outcomes]
    first, second = (outcome.value for outcome in outcomes)
    assert (first["killed"], second["killed"]) == (False, True)
    assert (first["policy"], second["policy"]) == ("bsp", "bsp")
    assert torch.equal(first["end"], second["end"])
    assert torch.isfinite(first["end"]).all()
    assert first["seen"] + second["seen"] == Counter(range(SAMPLES))


STUCK_S = 5.0
"""How long a step may wait for a coordinator that is stopped."""


def say_in_vain(_: int) -> None:
    """The only worker says that it has diverged to a coordinator that never hears it."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.05)
    said = Event()

    def kill() -> None:
        said.wait(STUCK_S)
        signal_coordinator(signal.SIGKILL)

    killer = Thread(target=kill)
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            for number, (x, y, _index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=BATCH)):
                ruined = (epoch, number) == (1, 1)
                if ruined:
                    signal_coordinator(signal.SIGSTOP)
                    killer.start()
                step(model, optimizer, x * math.nan if ruined else x, y)
                if ruined:
                    said.set()
                    killer.join()


def test_what_the_dead_coordinator_has_not_heard_is_said_again() -> None:
    settings: dict[str, Any] = {"policy": "local:8", "epochs": EPOCHS, "on_divergence": "end"}
    with job(say_in_vain, 1, max_coordinator_restarts=9, **settings) as running:
        (outcome,) = running.join()
    assert "DivergedError: the loss of rank 0 is nan" in outcome.traceback
