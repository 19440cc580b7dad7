"""What a learning-rate schedule counts: samples of the whole job, not steps of one worker."""

import pytest
from torch import nn

import polyrhythm
from tests.runtime.jobs import Numbered, job, make_model, make_optimizer, run_job, step

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


def train_on(rank: int, samples: int) -> int:
    """How many samples this worker has made steps with, in two epochs."""
    model, made = make_model(seed=0), 0
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer, epochs=EPOCHS) as session:
        for _ in range(EPOCHS):
            for x, y, _index in session.loader(Numbered(samples), batch_size=BATCH):
                step(model, optimizer, x, y)
                made += len(x)
    return made


@pytest.mark.parametrize("policy", ["bsp", "local:2", "selsync:0.05", "balanced", "auto"])
def test_an_epoch_of_fewer_samples_than_workers_is_refused_where_all_make_each_step(policy: str) -> None:
    """All say the same, so a job's log has it once."""
    with job(train_on, 3, 2, policy=policy) as running:
        outcomes = running.join()
    said = "2 samples cannot feed 3 workers in synchronous mode; use fewer workers, more data, or policy asp"
    assert [outcome.traceback.splitlines()[-1] for outcome in outcomes] == [f"polyrhythm.errors.UsageError: {said}"] * 3


@pytest.mark.parametrize("policy", ["asp", "ssp:2", "k-sync:2", "esync"])
def test_it_is_trained_on_where_workers_make_steps_of_their_own(policy: str) -> None:
    assert sum(run_job(train_on, 3, 2, policy=policy)) >= 2


def train_with_batch_norm(rank: int, samples: int, accumulate: int = 1) -> list[int]:
    """Sizes of the mini-batches; batch norm over vectors fails on one of one sample."""
    model, sizes = make_model(seed=0), list[int]()
    model = nn.Sequential(nn.BatchNorm1d(6), model)
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer) as session:
        for x, y, _index in session.loader(Numbered(samples), batch_size=BATCH, accumulate=accumulate):
            sizes.append(len(x))
            loss = nn.functional.cross_entropy(model(x), y) / accumulate
            loss.backward()  # type: ignore[no-untyped-call]
            if session.step_due:
                optimizer.step()
                optimizer.zero_grad()
    return sizes


@pytest.mark.parametrize(
    ("policy", "rest", "larger"), [("bsp", 2, 2), ("local:2", 2, 2), ("asp", 1, 1), ("k-sync:2", 1, 1), ("esync", 1, 1)]
)
def test_the_last_mini_batch_is_not_too_small_for_batch_norm(policy: str, rest: int, larger: int) -> None:
    by_rank = run_job(train_with_batch_norm, 2, 14 * BATCH + rest, policy=policy)
    sizes = sorted(size for each in by_rank for size in each)
    assert sizes == [BATCH] * (14 - larger) + [BATCH + 1] * larger


def test_a_small_last_step_has_fewer_mini_batches_that_are_large_enough() -> None:
    assert run_job(train_with_batch_norm, 2, 4 * BATCH + 6, 2, policy="bsp") == [[2, 2, 2, 2, 3]] * 2


def test_an_epoch_too_small_for_batch_norm_is_refused() -> None:
    with job(train_with_batch_norm, 2, 3, policy="bsp") as running:
        outcomes = running.join()
    said = (
        "3 samples cannot feed 2 workers in synchronous mode, with 2 for each because of batch norm; use fewer workers"
    )
    assert all(said in outcome.traceback.splitlines()[-1] for outcome in outcomes)
