"""A loss that is no number any more, on real workers: the job ends, or goes back and on under BSP."""

import math
from collections import Counter
from typing import Any

import pytest
import torch

import polyrhythm
from polyrhythm.errors import PolyrhythmError
from tests.runtime.jobs import Numbered, flat, job, make_model, make_optimizer, run_job, step

SAMPLES, BATCH, EPOCHS, WORKERS = 60, 3, 3, 2
RUINED = {"bsp": 3, "local": 3}
"""Mini-batch of the second epoch, by policy; elsewhere only the first is certain to be given to every rank."""


def explode(rank: int, doomed: str) -> dict[str, Any]:
    """Under the policy that is doomed, one worker sees no numbers in a step of the second epoch."""
    model = make_model()
    optimizer = make_optimizer(model, lr=0.05, momentum=0.9)
    starts, seen, losses, backward = [], Counter[int](), list[float](), torch.Tensor.backward
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            starts.append(flat(model))
            seen.clear()
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), batch_size=BATCH)):
                if session.policy == "bsp" and doomed != "bsp" and not losses:
                    starts.append(flat(model))
                    seen.clear()
                policy = session.policy.split(":")[0]
                ruined = (rank, epoch, number) == (1, 1, RUINED.get(policy, 0)) and doomed.startswith(policy)
                loss = step(model, optimizer, x * math.nan if ruined else x, y)
                seen.update(index.tolist())
                if policy == "bsp":
                    losses.append(loss)
    found = {"starts": starts, "end": flat(model), "seen": seen, "losses": losses, "policy": session.policy}
    return {**found, "backward is torch's": torch.Tensor.backward is backward}


@pytest.mark.parametrize("doomed", ["asp", "local:4", "esync"])
def test_the_job_goes_back_and_on_under_bsp(doomed: str) -> None:
    first, second = run_job(explode, WORKERS, doomed, policy=doomed, epochs=EPOCHS, on_divergence="rollback")
    assert (first["policy"], second["policy"]) == ("bsp", "bsp")
    assert torch.equal(first["end"], second["end"])
    assert torch.isfinite(first["end"]).all()
    assert all(math.isfinite(loss) for loss in first["losses"] + second["losses"])
    again = first["starts"][2]
    assert torch.equal(again, second["starts"][2]), "all go on from one state"
    # A hundred mini-batches before the loss are in doubt, which is more than there are.
    assert any(torch.equal(again, ranks["starts"][0]) for ranks in (first, second)), "that of the first epoch's start"
    assert first["seen"] + second["seen"] == Counter(range(SAMPLES))


@pytest.mark.parametrize("doomed", ["bsp", "asp"])
def test_the_job_ends_for_everyone_and_says_what_it_has_cost(doomed: str) -> None:
    with job(explode, WORKERS, doomed, policy=doomed, epochs=EPOCHS, on_divergence="end") as running:
        outcomes = running.join()
    last = [outcome.traceback.strip().split("\n")[-1] for outcome in outcomes]
    assert len(set(last)) == 1, last
    assert "DivergedError: the loss of rank" in last[0]
    assert "is nan: diverged after " in last[0]
    samples = int(last[0].split()[-2])
    # Both end the first epoch together; in the second the other may be anywhere, unless it waits for each step.
    least, most = (SAMPLES + 1, SAMPLES + 8 * BATCH) if doomed == "bsp" else (SAMPLES, 2 * SAMPLES)
    assert least <= samples <= most


def test_without_a_rule_the_job_goes_on_and_torch_is_left_as_it_was() -> None:
    first, _ = run_job(explode, WORKERS, "bsp", policy="bsp", epochs=EPOCHS)
    assert not torch.isfinite(first["end"]).any()
    assert first["backward is torch's"]


def test_a_rule_that_is_none_is_refused() -> None:
    model = make_model()
    with pytest.raises(PolyrhythmError, match="on_divergence must be ignore, end or rollback but got 'stop'"):
        polyrhythm.session(model, make_optimizer(model, lr=0.1), on_divergence="stop")  # type: ignore[arg-type]
