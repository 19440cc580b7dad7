from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import DataError, ScenarioError
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.order import order_of
from polyrhythm.training.data.partition import Dealt, deal, parse_partition

SPECS = ["defdp", "seldp", "labels:3", "sorted", "shards:2", "dirichlet:0.05", "dirichlet:10", "sizes:1,1,7,1,1"]
LABELS = np.arange(500) % 10


def dealt(spec: str, seed: int = 0, workers: int = 5) -> Dealt:
    return deal(parse_partition(spec), LABELS, workers, seed)


@pytest.mark.parametrize("spec", SPECS)
@settings(derandomize=True, max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31), epoch=st.integers(0, 20))
def test_every_epoch_has_every_sample_once(spec: str, seed: int, epoch: int) -> None:
    cut = dealt(spec, seed)
    read = np.concatenate([cut.order(worker, epoch) for worker in range(5)])
    assert sorted(read.tolist()) == list(range(500))
    assert min(cut.shards.sizes) >= 1


@pytest.mark.parametrize("spec", SPECS)
def test_the_seed_decides_and_an_epoch_is_shuffled_anew(spec: str) -> None:
    assert dealt(spec).order(1, 2).tolist() == dealt(spec).order(1, 2).tolist()
    assert dealt(spec).shuffled(1, 2).tolist() != dealt(spec).shuffled(1, 3).tolist()
    assert sorted(dealt(spec).shuffled(1, 2)) == sorted(dealt(spec).shuffled(1, 3))


def test_with_seldp_the_workers_read_other_chunks_and_everything_in_n_epochs() -> None:
    cut = dealt("seldp")
    chunks = [set(chunk.tolist()) for chunk in cut.indices]
    for epoch in range(7):
        assert [set(cut.order(worker, epoch).tolist()) for worker in range(5)] == [
            chunks[(worker + epoch) % 5] for worker in range(5)
        ]
    assert {int(i) for epoch in range(5) for i in cut.order(2, epoch)} == set(range(500))


@pytest.mark.parametrize(("count", "workers"), [(1, 10), (2, 5), (3, 5), (2, 7), (10, 3)])
def test_a_worker_has_so_many_labels(count: int, workers: int) -> None:
    cut = deal(parse_partition(f"labels:{count}"), LABELS, workers, 0)
    assert {len(set(LABELS[shard])) for shard in cut.indices} == {count}


def test_sorted_pieces_have_few_labels() -> None:
    assert [sorted(set(LABELS[shard])) for shard in dealt("sorted").indices] == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]
    assert all(len(set(LABELS[shard])) <= 2 for shard in dealt("shards:2").indices)
    assert [len(shard) for shard in dealt("shards:2").indices] == [100] * 5


def test_a_small_alpha_makes_shares_uneven() -> None:
    def spread(spec: str) -> float:
        counts = [np.bincount(LABELS[shard], minlength=10) / len(shard) for shard in dealt(spec).indices]
        return float(np.std(counts))

    assert spread("dirichlet:0.1") > 3 * spread("dirichlet:10")


def test_sizes_follow_their_ratios() -> None:
    assert dealt("sizes:1,1,6,1,1").shards.sizes == (50, 50, 300, 50, 50)


@pytest.mark.parametrize("partition", ["dirichlet:0.001", "sizes:1000000,1,1,1,1"])
def test_nobody_is_left_without_samples(partition: str) -> None:
    assert min(dealt(partition).shards.sizes) == 10


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("dirichle:1", "unknown partition 'dirichle': did you mean dirichlet"),
        ("dirichlet", "dirichlet needs the parameter.*but got 'dirichlet'"),
        ("dirichlet:0", "above 0, but got 'dirichlet:0'"),
        ("labels:1.5", "above 0, but got 'labels:1.5'"),
        ("labels:1,2", "above 0, but got 'labels:1,2'"),
        ("seldp:3", "seldp takes no value, but got 'seldp:3'"),
        ("sizes:1,inf", "above 0, but got 'sizes:1,inf'"),
    ],
)
def test_a_wrong_spec_is_one_clear_line(spec: str, message: str) -> None:
    with pytest.raises(ScenarioError, match=rf"^training\.partition: .*{message}"):
        TrainingConfig(partition=spec)


@pytest.mark.parametrize(
    ("spec", "labels", "workers", "message"),
    [
        ("labels:1", LABELS, 5, "5 workers 5 labels of 10; give each worker from 2 to 10"),
        ("labels:11", LABELS, 5, "from 2 to 10"),
        ("sizes:1,2", LABELS, 5, "2 ratios for 5 workers"),
        ("dirichlet:1", np.zeros((50, 8)), 5, r"one label a sample but these have shape \(8,\); use defdp"),
        ("defdp", LABELS[:4], 5, "4 samples cannot be dealt to 5 workers"),
    ],
)
def test_data_that_cannot_be_cut_are_refused(spec: str, labels: np.ndarray, workers: int, message: str) -> None:
    with pytest.raises(DataError, match=message):
        deal(parse_partition(spec), labels, workers, 0)


@pytest.mark.parametrize("spec", ["shared", "seldp", "dirichlet:1"])
def test_leases_that_tile_an_epoch_read_every_sample_once(spec: str) -> None:
    order = order_of(spec, torch.from_numpy(LABELS), 5, seed=3)
    ends = order.shards.starts if order.shards else (0, 250, 500)
    sample_ranges = [SampleRange(4, start, stop) for start, stop in pairwise(ends)]
    assert sorted(torch.cat([order.indices(sample_range) for sample_range in sample_ranges]).tolist()) == list(
        range(500)
    )
