"""Figures 1 and 2 of SelSync: how BSP scales on thin links, what skewed data cost, what a large mini-batch costs."""

import pytest
import torch

from polyrhythm.sim import simulate
from polyrhythm_experiments.reproduce import Lab, claims
from polyrhythm_experiments.reproduce.selsync.premises import (
    ALIKE,
    BATCHES,
    COLUMNS,
    FEDERATED,
    STEPS,
    WORKERS,
    batch_costs,
    kept_bytes,
    place,
    premise_section,
    premise_trials,
    timed,
)
from polyrhythm_experiments.reproduce.selsync.trials import trials


def test_more_workers_behind_one_server_of_vgg11_are_slower_than_one(quick: Lab) -> None:
    wanted = premise_trials(quick) | {FEDERATED: trials(quick)[FEDERATED]}
    section = premise_section(quick, quick.run(wanted))
    found = {row.what: row for row in claims(section)}
    assert [row.place.rpartition(", ")[2] for row in found.values()] == [
        f"fig. {n}" for n in ("1a", "1a", "1b", "2a", "2b")
    ]
    two = found["samples/s of 2 workers over 1, VGG11"].ours
    assert not isinstance(two, str)
    assert two.value is not None
    assert two.value < 0.1
    by_workers, by_batch = section.grids[1:]
    assert [row[0] for row in by_workers.rows] == [str(n) for n in WORKERS]
    assert [row[0] for row in by_batch.rows] == [str(batch) for batch in BATCHES]


def test_an_exchange_takes_as_long_as_its_bytes() -> None:
    """Two workers push and pull 625 MB through one NIC of 5 Gbit/s: 2 s each way, after a second of computing."""
    run = simulate(timed(2, 625e6, 1.0, 1), "bsp")
    assert run.duration_s == pytest.approx(STEPS * 5.0, rel=0.05)


def test_every_throughput_has_that_of_one_worker(quick: Lab) -> None:
    names = set(premise_trials(quick))
    assert names == {place(name, n) for name in COLUMNS for n in WORKERS} | {ALIKE}


def test_what_the_backward_pass_needs_grows_with_the_mini_batch(quick: Lab) -> None:
    (cost,) = batch_costs(quick)
    kept = [cost.kept_bytes[batch] for batch in BATCHES]
    assert kept == sorted(kept)
    assert kept[-1] > 8 * kept[0]


def test_kept_bytes_are_those_of_each_memory_once() -> None:
    left, right = torch.ones(10, requires_grad=True), torch.ones(10, requires_grad=True)

    def work() -> None:
        torch.autograd.backward((left * right + left.square()).sum())

    assert kept_bytes(work) == 2 * 40
