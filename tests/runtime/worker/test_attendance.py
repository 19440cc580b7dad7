"""A rank whose script makes no backward pass with a mini-batch takes part in that of the others."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parameters_to_vector
from torch.utils.data import default_collate

import polyrhythm
from polyrhythm.errors import UsageError
from tests.runtime.jobs import Numbered, make_optimizer, run_job

SAMPLES, BATCH, EPOCHS = 48, 4, 2
Seen = list[tuple[list[int], bool]]
"""Of each step of a rank the samples, and whether it has learned from them."""


def make_model(buffers: bool) -> nn.Module:
    torch.manual_seed(0)
    middle = [nn.BatchNorm1d(8)] if buffers else []
    return nn.Sequential(nn.Linear(6, 8), *middle, nn.Tanh(), nn.Linear(8, 3))


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y)


def train(
    rank: int, who: list[int], steps: list[int], after: str, buffers: bool, scaled: bool, clip: float = torch.inf
) -> Any:
    """Ranks `who` go on with the next mini-batch in these steps, before the forward pass or after it."""
    model, seen, number = make_model(buffers), Seen(), 0
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9, weight_decay=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0, enabled=scaled)
    with polyrhythm.session(model, optimizer) as session:
        loader = session.loader(Numbered(SAMPLES), BATCH)
        for _ in range(EPOCHS):
            for x, y, indices in loader:
                skips = rank in who and number in steps
                number += 1
                seen.append((indices.tolist(), not skips))
                if skips and after == "nothing":
                    continue
                loss = loss_of(model, x, y)
                if skips:
                    continue
                optimizer.zero_grad()
                scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(model.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
        return parameters_to_vector(model.parameters()).detach(), seen, session.metrics["skipped_steps"]


def train_alone(made: list[Seen], clip: float = torch.inf) -> Tensor:
    """The same in one process: each step with the mean of what the ranks have learned, and nothing of those that have
    not.
    """
    model, data = make_model(buffers=False), Numbered(SAMPLES)
    optimizer = make_optimizer(model, lr=0.1, momentum=0.9, weight_decay=0.1)
    for parts in zip(*made, strict=True):
        optimizer.zero_grad()
        learned = [default_collate([data[i] for i in indices]) for indices, learns in parts if learns]
        for x, y, _ in learned:
            (loss_of(model, x, y) / len(parts)).backward()  # type: ignore[no-untyped-call]
        if learned:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return parameters_to_vector(model.parameters()).detach()


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("after", ["nothing", "the forward pass"])
@pytest.mark.parametrize(
    ("ranks", "who", "steps"),
    [(2, [0], [3]), (2, [1], [0]), (2, [1], [1, 2, 5, 11]), (2, [0, 1], [3]), (3, [1], [2, 7]), (3, [0, 2], [1, 7])],
)
def test_it_has_the_step_of_the_others(ranks: int, who: list[int], steps: list[int], after: str, scaled: bool) -> None:
    made = run_job(train, ranks, who, steps, after, False, scaled, policy="bsp")
    expected = train_alone([seen for _, seen, _ in made])
    for rank, (found, _, skipped) in enumerate(made):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)
        assert torch.equal(found, made[0][0])
        assert skipped == (len(steps) if rank in who else 0)


@pytest.mark.parametrize("scaled", [False, True])
def test_it_clips_the_mean_as_the_others_do(scaled: bool) -> None:
    """They had other parameters than it from then on, and the job ended."""
    made = run_job(train, 2, [1], [3], "nothing", False, scaled, 0.05, policy="bsp")
    expected = train_alone([seen for _, seen, _ in made], 0.05)
    for found, _, _ in made:
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("after", ["nothing", "the forward pass"])
@pytest.mark.parametrize("who", [0, 1])
def test_buffers_are_exchanged_as_often_as_by_the_others(who: int, after: str) -> None:
    first, second = (found for found, *_ in run_job(train, 2, [who], [0, 4, 5, 11], after, True, False, policy="bsp"))
    assert torch.equal(first, second)


def pass_twice(rank: int) -> str:
    """Rank 1 makes two forward passes and no backward pass with its third mini-batch."""
    model = make_model(buffers=False)
    optimizer = make_optimizer(model, lr=0.1)
    try:
        with polyrhythm.session(model, optimizer) as session:
            for number, (x, y, _) in enumerate(session.loader(Numbered(SAMPLES), BATCH)):
                loss = loss_of(model, x, y)
                if (rank, number) == (1, 2):
                    loss_of(model, x, y)
                    continue
                optimizer.zero_grad()
                loss.backward()  # type: ignore[no-untyped-call]
                optimizer.step()
    except UsageError as error:
        return str(error)
    return ""


def test_what_cannot_be_made_up_for_ends_that_rank_with_one_line() -> None:
    assert run_job(pass_twice, 2, policy="bsp") == [
        "",
        "rank 1 has made no backward pass with its mini-batch of step 3, in which the others wait for it, and it "
        "cannot be made up for: it has made other passes than in the step before; make one with every mini-batch",
    ]
