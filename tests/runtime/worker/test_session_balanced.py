"""Unequal shares on real workers: BSP where they are equal, one process with the whole batch whatever they are."""

import logging
import os
import re
import signal
import time
from collections import Counter
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polyrhythm
from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import Status
from tests.runtime.jobs import Numbered, flat, job, make_model, make_optimizer, run_job, step

SAMPLES, EPOCHS, BATCH = 96, 2, 4
PLAIN: dict[str, Any] = {"lr": 0.1}
MOMENTUM: dict[str, Any] = {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}
RESTLESS = "tests.restless:Restless"


class Seen(list[list[int]]):
    """The samples of each step."""

    @property
    def sizes(self) -> list[int]:
        return [len(batch) for batch in self]


def train(rank: int, optimizer: dict[str, Any], samples: int = SAMPLES, options: dict[str, Any] | None = None) -> Any:
    """Parameters at the end, and the samples that this worker has seen."""
    model = make_model(seed=rank)
    made, seen = make_optimizer(model, **optimizer), Seen()
    with polyrhythm.session(model, made) as session:
        for _ in range(EPOCHS):
            for x, y, index in session.loader(Numbered(samples), BATCH, shuffle=False, **(options or {})):
                step(model, made, x, y)
                seen.append(index.tolist())
    return flat(model), seen


def train_alone(batch_size: int, optimizer: dict[str, Any], samples: int = SAMPLES) -> Tensor:
    model, data = make_model(seed=0), Numbered(samples)
    made = make_optimizer(model, **optimizer)
    for _ in range(EPOCHS):
        for start in range(0, samples, batch_size):
            step(model, made, data.x[start : start + batch_size], data.y[start : start + batch_size])
    return flat(model)


def every_sample_once(seen: list[Seen], samples: int = SAMPLES, epochs: int = EPOCHS) -> None:
    counted = Counter(index for of in seen for batch in of for index in batch)
    assert counted == Counter(dict.fromkeys(range(samples), epochs))


def unequal(seen: list[Seen]) -> bool:
    return any(size > BATCH for of in seen for size in of.sizes)


@pytest.mark.parametrize("samples", [SAMPLES, 101])
def test_equal_shares_are_bsp_to_the_bit(samples: int) -> None:
    """With a largest share of the mini-batch no other are possible; three ranks add up in an order that matters."""
    ours = run_job(train, 3, MOMENTUM, samples, policy=f"balanced:{BATCH}")
    theirs = run_job(train, 3, MOMENTUM, samples, policy="bsp")
    assert all(torch.equal(one[0], other[0]) for one, other in zip(ours, theirs, strict=True))
    assert [seen for _, seen in ours] == [seen for _, seen in theirs]


FETCHED_AHEAD = {"num_workers": 1, "prefetch_factor": 3, "multiprocessing_context": "fork"}


@pytest.mark.parametrize(
    ("optimizer", "options"),
    [(PLAIN, {}), (MOMENTUM, FETCHED_AHEAD), ({"kind": "Adam", "lr": 0.01}, {})],
    ids=["sgd", "momentum, fetched ahead", "adam"],
)
def test_any_shares_are_one_process_with_the_whole_batch(optimizer: dict[str, Any], options: dict[str, Any]) -> None:
    """To float tolerance: sums are added up in another order."""
    found = run_job(train, 3, optimizer, SAMPLES, options, policy=RESTLESS)
    seen = [each for _, each in found]
    assert unequal(seen)
    every_sample_once(seen)
    for parameters, _ in found:
        torch.testing.assert_close(parameters, train_alone(3 * BATCH, optimizer), rtol=1e-4, atol=1e-6)


def test_the_rest_of_an_epoch_is_divided_and_weighed_too() -> None:
    found = run_job(train, 3, MOMENTUM, 101, policy=RESTLESS)
    every_sample_once([seen for _, seen in found], 101)
    assert torch.equal(found[0][0], found[1][0])


def accumulate(rank: int) -> Tensor:
    """Parts of unequal size, with the mean over the parts taken by the script."""
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, **MOMENTUM)
    with polyrhythm.session(model, optimizer) as session:
        for _ in range(EPOCHS):
            for x, y, _index in session.loader(Numbered(SAMPLES), BATCH, shuffle=False, accumulate=2):
                (nn.functional.cross_entropy(model(x), y) / 2).backward()  # type: ignore[no-untyped-call]
                if session.step_due:
                    optimizer.step()
                    optimizer.zero_grad()
    return flat(model)


def test_accumulated_parts_are_weighed_by_their_samples() -> None:
    expected = train_alone(3 * BATCH, MOMENTUM)
    for parameters in run_job(accumulate, 3, policy=RESTLESS):
        torch.testing.assert_close(parameters, expected, rtol=1e-4, atol=1e-6)


def normalised(rank: int, norm: type[nn.Module]) -> list[str]:
    """What a worker says of a model with a norm."""
    said: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger("polyrhythm.runtime.worker").addHandler(handler)
    model = nn.Sequential(nn.Linear(6, 8), norm(8), nn.Linear(8, 3))
    model[1].eval()  # batch norm cannot train on a share of one sample
    optimizer = make_optimizer(model, **PLAIN)
    with polyrhythm.session(model, optimizer) as session:
        for _ in range(EPOCHS):
            for x, y, _index in session.loader(Numbered(SAMPLES), BATCH, shuffle=False):
                step(model, optimizer, x, y)
    return [line for line in said if "batch norm" in line]


@pytest.mark.parametrize(("norm", "policy", "lines"), [("BatchNorm1d", RESTLESS, 1), ("LayerNorm", RESTLESS, 0)])
def test_unequal_shares_of_a_model_with_batch_norm_are_said_once(norm: str, policy: str, lines: int) -> None:
    said = run_job(normalised, 2, getattr(nn, norm), policy=policy)
    assert [len(each) for each in said] == [lines, 0]


def switch(rank: int) -> tuple[Tensor, Seen]:
    """To shares, to parameter servers with one mini-batch each at a time, and back."""
    model, seen = make_model(seed=rank), Seen()
    optimizer = make_optimizer(model, **PLAIN)
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), BATCH, shuffle=False)):
                step(model, optimizer, x, y)
                seen.append(index.tolist())
                if rank == 0 and number == 3:
                    session.switch(("k-sync:2", RESTLESS)[epoch])
    return flat(model), seen


def test_a_switch_leaves_no_weight_behind() -> None:
    """K-sync with all workers makes the steps of BSP, but for its last: what arrives when it is about to end is applied
    at once, and the other worker may read its parameters after that.
    """
    found = run_job(switch, 2, policy=RESTLESS)
    every_sample_once([seen for _, seen in found])
    assert torch.equal(found[0][0], found[1][0])
    torch.testing.assert_close(found[0][0], train_alone(2 * BATCH, PLAIN), rtol=0.02, atol=2e-3)


def die(rank: int, name: str) -> tuple[Seen, Tensor, Status | None]:
    """The last rank dies in the middle of the first epoch; what this one has seen of the last."""
    model = make_model()
    optimizer = make_optimizer(model, **PLAIN)
    with polyrhythm.session(model, optimizer) as session:
        for epoch in range(EPOCHS):
            seen = Seen()
            for number, (x, y, index) in enumerate(session.loader(Numbered(SAMPLES), BATCH)):
                if (rank, epoch, number) == (2, 0, 5):
                    os.kill(os.getpid(), signal.SIGKILL)
                step(model, optimizer, x, y)
                seen.append(index.tolist())
        state = steer.status(steer.at(name)) if rank == 0 else None
    return seen, flat(model), state


def test_a_death_loses_no_sample() -> None:
    name = f"balanced-{os.getpid()}"
    with job(die, 3, name, name=name, policy=RESTLESS) as running:
        first, second, _ = running.join()
    (ours, parameters, state), (theirs, others, _) = first.value, second.value
    assert torch.equal(parameters, others)
    assert isinstance(state, Status)
    assert (state.samples, state.skipped) == (EPOCHS * SAMPLES, 0)
    every_sample_once([ours, theirs], epochs=1)


class Pace:
    """A clock that only this worker's steps move."""

    def __init__(self) -> None:
        self.now_s = time.perf_counter()

    def __call__(self) -> float:
        return self.now_s


LARGE, STEPS = 16, 100


def crawl(rank: int) -> Seen:
    """A second a sample by this worker's own clock; rank 2 takes four, between the 30th step and the 60th."""
    pace, seen = Pace(), Seen()
    time.perf_counter = pace
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, **PLAIN)
    with polyrhythm.session(model, optimizer) as session:
        session._worker._context.clock = pace
        for number, (x, y, index) in enumerate(session.loader(Numbered(4 * LARGE * STEPS), LARGE, shuffle=False)):
            pace.now_s += len(x) * (4.0 if rank == 2 and number < STEPS // 2 else 1.0)
            step(model, optimizer, x, y)
            seen.append(index.tolist())
    return seen


def test_one_of_four_is_four_times_slower_for_a_while() -> None:
    seen = run_job(crawl, 4, policy="balanced")
    every_sample_once(seen, 4 * LARGE * STEPS, epochs=1)
    shares = list(zip(*(each.sizes for each in seen), strict=True))
    assert shares[0] == (LARGE,) * 4
    assert shares[STEPS // 2 - 1][2] in (4, 5)
    assert max(shares[STEPS // 2 - 1]) == 20
    assert shares[-1] == (LARGE,) * 4
    assert all(sum(step) == 4 * LARGE for step in shares)


def add_up(rank: int) -> str:
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, **PLAIN)
    with polyrhythm.session(model, optimizer) as session:
        for x, y, _ in session.loader(Numbered(SAMPLES), BATCH):
            try:
                nn.functional.cross_entropy(model(x), y, reduction="sum").backward()  # type: ignore[no-untyped-call]
            except UsageError as error:
                return str(error)
            optimizer.step()
    return ""


def test_a_loss_that_is_a_sum_is_refused() -> None:
    with job(add_up, 1, policy="balanced") as running:
        (outcome,) = running.ranks.join(60.0)
        running.coordinator.join(60.0)
    assert "the loss is a sum over its mini-batch" in outcome.value


def sharded(rank: int) -> None:
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, **PLAIN)
    os.environ["WORLD_SIZE"] = "2"
    with polyrhythm.session(model, optimizer) as session:
        for x, y, _ in session.loader(Numbered(SAMPLES), BATCH, partition="seldp"):
            step(model, optimizer, x, y)


def injected(rank: int) -> None:
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, **PLAIN)
    os.environ["WORLD_SIZE"] = "2"
    with polyrhythm.session(model, optimizer) as session:
        for x, y, _ in session.loader(Numbered(SAMPLES), BATCH, injection=(0.5, 0.5)):
            step(model, optimizer, x, y)


def of_two_sizes(rank: int) -> None:
    model = make_model(seed=rank)
    optimizer = make_optimizer(model, **PLAIN)
    with polyrhythm.session(model, optimizer) as session:
        for x, y, _ in session.loader(Numbered(SAMPLES), BATCH + rank):
            step(model, optimizer, x, y)


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        (sharded, "in shares, but the workers read shards of their own; use partition='shared'"),
        (injected, "in shares, but samples are injected; use policy bsp"),
        (of_two_sizes, r"in shares, but the ranks ask for \[4, 5\]; give all the same batch_size"),
    ],
)
def test_what_cannot_be_shared_out_is_refused(script: Any, reason: str) -> None:
    """Who is about to meet the others while the coordinator ends finds nobody there instead."""
    with job(script, 2, policy="balanced") as running:
        outcomes = running.ranks.join(60.0)
        running.coordinator.join(60.0)
    assert not any(outcome.ok for outcome in outcomes)
    assert re.search(reason, "".join(outcome.traceback for outcome in outcomes))
