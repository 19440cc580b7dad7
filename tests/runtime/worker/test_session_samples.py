"""What a learning-rate schedule counts: samples of the whole job, not steps of one worker."""

import pytest

import polyrhythm
from tests.runtime.jobs import Numbered, make_model, make_optimizer, run_job, step

SAMPLES, EPOCHS, BATCH = 40, 2, 4


def positions(rank: int) -> list[int]:
    """`Session.samples` at each step."""
    model = make_model(seed=0)
    optimizer = make_optimizer(model, lr=0.1)
    seen = []
    with polyrhythm.session(model, optimizer, epochs=EPOCHS) as session:
        for epoch in range(EPOCHS):
            for x, y, _index in session.loader(Numbered(SAMPLES), batch_size=BATCH):
                seen.append(session.samples)
                step(model, optimizer, x, y)
            assert session.samples == (epoch + 1) * SAMPLES
    return seen


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_every_step_has_its_place_in_the_job(policy: str) -> None:
    by_rank = run_job(positions, 2, policy=policy)
    if policy == "bsp":  # a rate that follows from it is the same on all ranks
        assert by_rank[0] == by_rank[1] == list(range(0, SAMPLES * EPOCHS, 2 * BATCH))
    else:
        assert sorted(by_rank[0] + by_rank[1]) == list(range(0, SAMPLES * EPOCHS, BATCH))
    assert all(seen == sorted(seen) for seen in by_rank)
