"""Real jobs whose workers send each other samples."""

import os
from typing import Any

import pytest
import torch

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.worker.data_injection import tensors_of, with_tensors
from polyrhythm.training.data.injection import Injection
from tests.runtime.jobs import Numbered, flat, job, make_model, make_optimizer, run_job, step

SAMPLES, WORKERS, BATCH, OWN = 48, 3, 7, 4  # 7 / (1 + 0.5 * 0.5 * 3)
SHARES = (0.5, 0.5)


def read(rank: int, policy: str, switch: str = "", dies: bool = False) -> dict[str, Any]:
    """Train; the samples of each mini-batch by number, and what the session has counted."""
    os.environ["WORLD_SIZE"] = str(WORKERS)
    data = Numbered(SAMPLES)
    batches: list[tuple[int, list[int]]] = []
    model = make_model(seed=rank)
    made = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, made, policy) as session:
        for epoch in range(2):
            for number, (x, y, indices) in enumerate(session.loader(data, BATCH, seed=2, injection=SHARES)):
                assert torch.equal(x, data.x[indices])
                assert torch.equal(y, data.y[indices])
                batches.append((epoch, indices.tolist()))
                step(model, made, x, y)
                if switch and (rank, epoch, number) == (0, 0, 0):
                    session.switch(switch)
                if dies and (rank, epoch, number) == (2, 0, 1):
                    os._exit(1)
        metrics = session.metrics
    return {"batches": batches, "model": flat(model), **metrics}


@pytest.mark.parametrize("policy", ["bsp", "local:2"])
def test_samples_travel_from_the_sharers_to_all_others(policy: str) -> None:
    found = run_job(read, WORKERS, policy, policy=policy)
    injection, steps = Injection(*SHARES, 2), len(found[0]["batches"])
    assert steps == 2 * SAMPLES // (WORKERS * OWN)
    for step_ in range(steps):
        epoch = found[0]["batches"][step_][0]
        own = [result["batches"][step_][1][:OWN] for result in found]
        number = (epoch << 48) | (1 << 32) | (step_ - epoch * steps // 2)
        sharers = injection.sharers(number, range(WORKERS))
        for worker, result in enumerate(found):
            sent = [own[s][row] for s in sharers if s != worker for row in injection.rows(number, s, OWN)]
            assert result["batches"][step_][1] == own[worker] + sent
    everyone = [index for result in found for _, indices in result["batches"] for index in indices[:OWN]]
    assert sorted(everyone) == sorted([*range(SAMPLES)] * 2)
    assert all(result["samples"] == steps * OWN for result in found)
    assert all(result["injected_bytes"] > 0 for result in found)
    counted = sum(sum(row.values()) for result in found for row in result["injected"].values())
    assert counted == sum(len(indices) - OWN for result in found for _, indices in result["batches"])


def test_a_worker_that_dies_does_not_hold_up_the_others() -> None:
    with job(read, WORKERS, "bsp", "", True, policy="bsp") as running:
        outcomes = running.join(leave=(2,))
    survivors = [outcome.value for outcome in outcomes[:2]]
    assert torch.equal(survivors[0]["model"], survivors[1]["model"])
    last = [len(indices) for epoch, indices in survivors[0]["batches"] if epoch == 1]
    assert sum(last) > SAMPLES // 2  # the two go on with injecting


def test_workers_that_run_apart_are_refused() -> None:
    with job(read, WORKERS, "asp", policy="asp") as running:
        outcomes = running.ranks.join(60.0)
    message = "injection needs workers that make their steps together, but policy asp lets them run apart"
    assert all(message in outcome.traceback for outcome in outcomes)


@pytest.mark.parametrize("policy", ["asp", "esync", "switch:bsp@0.9,asp"])
def test_a_switch_to_workers_that_run_apart_is_refused(policy: str) -> None:
    """The job goes on as it was."""
    found = run_job(read, WORKERS, "bsp", policy, policy="bsp", epochs=2)
    assert [(result["policy"], result["phase"]) for result in found] == [("bsp", 1)] * WORKERS
    assert torch.equal(found[0]["model"], found[1]["model"])


def test_batches_keep_their_form() -> None:
    batch = (torch.zeros(2), {"a": [torch.ones(2, 3)]})
    parts = [2 * part for part in tensors_of(batch)]
    again = with_tensors(batch, iter(parts))
    assert isinstance(again, tuple)
    assert torch.equal(again[1]["a"][0], torch.full((2, 3), 2.0))


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (["a"], "can move tensors, also in lists, tuples and dicts, but not a str"),
        ([torch.zeros(2), torch.zeros(3)], r"one row a sample but tensors have \[2, 3\] rows"),
    ],
)
def test_batches_of_other_things_are_one_clear_line(batch: Any, message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        tensors_of(batch)
