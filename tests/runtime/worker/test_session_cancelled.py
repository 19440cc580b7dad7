"""A worker that the others have left behind does not compute what was cancelled before it began."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import polyrhythm
from polyrhythm.testing.coordinates import SampleAttempts, SampleNumbers
from tests.runtime.coordinates import trouble
from tests.runtime.jobs import run_job

SAMPLES, BATCH = 60, 2
STEPS = SAMPLES // BATCH


def stand_in_the_first_step(rank: int, pipe: Path, options: dict[str, Any]) -> tuple[int, Tensor]:
    """Rank 1 stands until rank 0 has nearly all steps behind it; how many each has computed, and the parameters."""
    model, steps = SampleAttempts(1, SAMPLES), 0
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, optimizer) as session:
        for indices in session.loader(SampleNumbers(SAMPLES), batch_size=BATCH, **options):
            steps += 1
            if (rank, steps) in ((0, STEPS - 2), (1, 1)):
                pipe.open("r" if rank else "w").close()
            optimizer.zero_grad()
            model(0, indices).backward()
            optimizer.step()
    return steps, model.weight.detach()[..., 0].clone()


@pytest.mark.parametrize("options", [{}, {"num_workers": 1, "multiprocessing_context": "fork"}])
def test_what_was_cancelled_before_it_began_is_not_computed(tmp_path: Path, options: dict[str, Any]) -> None:
    os.mkfifo(tmp_path / "pipe")
    (made, one), (behind, other) = run_job(stand_in_the_first_step, 2, tmp_path / "pipe", options, policy="k-sync:1")
    assert trouble([one, other], [2]) == ""
    assert made >= STEPS - 4
    assert behind <= 5


def count(rank: int) -> tuple[int, int]:
    """Samples and steps that a rank says it has made, of three epochs."""
    model = SampleAttempts(1, SAMPLES)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with polyrhythm.session(model, optimizer) as session:
        for _ in range(3):
            for indices in session.loader(SampleNumbers(SAMPLES), batch_size=BATCH):
                optimizer.zero_grad()
                model(0, indices).backward()
                optimizer.step()
        return session.metrics["samples"], session.metrics["steps"]


@pytest.mark.parametrize("policy", ["k-sync:1", "k-sync:2"])
def test_a_step_that_is_cancelled_after_its_gradient_was_sent_does_not_count(policy: str) -> None:
    made = run_job(count, 3, policy=policy)
    assert sum(samples for samples, _ in made) == 3 * SAMPLES
    assert sum(steps for _, steps in made) == 3 * STEPS
