"""A coordinator that is killed about the time when training diverges."""

import math
import os
import signal
from typing import Any

import polyrhythm
from tests.runtime.jobs import COORDINATOR_PID, Numbered, first_child, job, make_model, make_optimizer, step

SAMPLES, BATCH, EPOCHS = 60, 3, 3


def signal_coordinator(number: int) -> None:
    os.kill(first_child(int(os.environ[COORDINATOR_PID])), number)


def say_in_vain(_: int) -> None:
    """The only worker says that it has diverged to a coordinator that never hears it."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.05)
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            for number, (x, y, _index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=BATCH)):
                ruined = (epoch, number) == (1, 1)
                if ruined:
                    signal_coordinator(signal.SIGSTOP)
                step(model, optimizer, x * math.nan if ruined else x, y)
                if ruined:
                    signal_coordinator(signal.SIGKILL)


def test_what_the_dead_coordinator_has_not_heard_is_said_again() -> None:
    settings: dict[str, Any] = {"policy": "local:8", "epochs": EPOCHS, "on_divergence": "end"}
    with job(say_in_vain, 1, max_coordinator_restarts=9, **settings) as running:
        (outcome,) = running.join()
    assert "DivergedError: the loss of rank 0 is nan" in outcome.traceback
