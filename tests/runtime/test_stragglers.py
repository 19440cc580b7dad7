"""Who is late is known in every job, plain BSP included."""

import time
from typing import Any

import polyrhythm
from polyrhythm.runtime.launch import control_client as steer
from tests.runtime.jobs import Numbered, job, make_model, make_optimizer, step


def train(rank: int, name: str) -> tuple[dict[str, Any], str]:
    """Rank 1 is slow by far; the arrivals that its session knows, and the kind that the coordinator states."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.05)
    with polyrhythm.session(model, optimizer) as session:
        for _ in range(2):
            for x, y, _ in session.loader(Numbered(60), batch_size=1):
                time.sleep(0.15 if rank == 1 else 0.0)
                step(model, optimizer, x, y)
        state = steer.status(steer.at(name))
    return session.metrics["arrivals"], state.arrivals[1].kind


def test_a_slow_worker_is_named_and_its_wait_is_not_held_against_it() -> None:
    name = f"late-{time.monotonic_ns()}"
    with job(train, 3, name, name=name, policy="bsp") as running:
        outcomes = running.join()
    for outcome in outcomes:
        assert outcome.ok, outcome.traceback
        arrivals, kind = outcome.value
        assert kind == "persistent"
        assert arrivals[1]["late"]  # on a loaded machine another one may be late for a while, too
        assert arrivals[1]["compute_s"] >= 0.15
        assert arrivals[0]["wait_s"] > arrivals[1]["wait_s"]
