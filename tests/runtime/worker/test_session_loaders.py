"""What session.loader refuses, and several loaders of one session."""

from typing import Any

import pytest

import polyrhythm
from tests.runtime.jobs import Numbered, job, make_model, make_optimizer, run_job, step


def begin_with(rank: int, arguments: dict[str, Any]) -> None:
    model = make_model()
    with polyrhythm.session(model, make_optimizer(model, lr=0.1)) as session:
        session.loader(Numbered(40), **arguments)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"batch_size": "4"}, "batch_size must be a whole number of at least 1 but got '4'"),
        ({"batch_size": None}, "batch_size must be a whole number of at least 1 but got None"),
        ({"batch_size": "4", "injection": (0.5, 0.5)}, "batch_size must be a whole number of at least 1 but got '4'"),
        ({"batch_size": 4, "accumulate": 2.0}, "accumulate must be a whole number of at least 1 but got 2.0"),
        ({"batch_size": 4, "num_worker": 2}, "session.loader takes no option 'num_worker': did you mean num_workers?"),
    ],
)
def test_a_wrong_argument_of_the_loader_is_one_line(arguments: dict[str, Any], said: str) -> None:
    with job(begin_with, 1, arguments, policy="bsp") as running:
        (outcome,) = running.join()
    assert outcome.traceback.splitlines()[-1].startswith(f"polyrhythm.errors.UsageError: {said}")


def train_on_two(rank: int, lengths: tuple[int, int]) -> list[list[int]]:
    """Two loaders that are made before either is read, by turns; which samples this worker got in each epoch."""
    model, seen = make_model(), list[list[int]]()
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer, epochs=4) as session:
        loaders = [session.loader(Numbered(samples), batch_size=4) for samples in lengths]
        for loader in (loaders[0], loaders[1], loaders[0], loaders[1]):
            seen.append([])
            for x, y, index in loader:
                seen[-1] += index.tolist()
                step(model, optimizer, x, y)
            assert session.state_dict()["epoch"] == len(seen) - 1
    return seen


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_two_loaders_made_before_either_is_read_have_epochs_by_turns(policy: str) -> None:
    first, second = run_job(train_on_two, 2, (40, 40), policy=policy)
    whole = [sorted(ours + theirs) for ours, theirs in zip(first, second, strict=True)]
    assert whole == [list(range(samples)) for samples in (40, 40, 40, 40)]


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_validation_data_are_refused(policy: str) -> None:
    with job(train_on_two, 2, (40, 24), policy=policy) as running:
        outcomes = running.join()
    said = "session.loader begins an epoch of 24 samples after one of 40; give all epochs data sets of one length"
    assert all(said in outcome.traceback.splitlines()[-1] for outcome in outcomes)


def train_from(rank: int, kept: dict[str, Any] | None) -> tuple[dict[str, Any], int]:
    """Epochs by turns of two loaders, from a session's state on; that within epoch 1, and its samples until the end."""
    model, found, samples = make_model(), kept or {}, 0
    optimizer = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, optimizer, epochs=2) as session:
        if kept:
            session.load_state_dict(kept)
        loaders = [session.loader(Numbered(40), batch_size=4) for _ in range(2)]
        for epoch in range(1 if kept else 0, 2):
            for number, (x, y, _) in enumerate(loaders[epoch]):
                step(model, optimizer, x, y)
                samples += len(x) * (epoch == 1)
                if not kept and (epoch, number) == (1, 1):
                    found = session.state_dict()
    return found, samples


def test_of_two_loaders_the_one_that_is_read_goes_on_within_its_epoch() -> None:
    """That which was made first had the place, and the other one made all of its epoch again."""
    (kept, _), _ = run_job(train_from, 2, None)
    assert sum(samples for _, samples in run_job(train_from, 2, kept)) == 40 - 2 * 2 * 4
