from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from polyrhythm.errors import PolyrhythmError
from polyrhythm.training.data.partition import redealt
from polyrhythm.training.data.samplers import PartitionSampler

LABELS = [index % 5 for index in range(60)]
PARTITIONS = ["defdp", "seldp", "labels:2", "dirichlet:0.5"]


def crew(partition: str, workers: int = 3) -> list[PartitionSampler]:
    return [PartitionSampler(LABELS, partition, worker, workers, seed=7) for worker in range(workers)]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_the_samplers_of_all_workers_give_every_sample_once_an_epoch(partition: str) -> None:
    samplers = crew(partition)
    for epoch in range(4):
        assert {sampler.epoch for sampler in samplers} == {epoch}
        assert sum(map(len, samplers)) == 60
        assert sorted(index for sampler in samplers for index in sampler) == list(range(60))


@pytest.mark.parametrize("processes", [0, 2])
def test_a_loader_with_processes_of_its_own_reads_the_same(processes: int) -> None:
    data = TensorDataset(torch.arange(60))
    sampler, same = crew("seldp")[1], crew("seldp")[1]
    loader = DataLoader(data, batch_size=7, sampler=sampler, num_workers=processes)
    for _ in range(2):
        assert torch.cat([batch for (batch,) in loader]).tolist() == list(same)


@pytest.mark.parametrize("partition", PARTITIONS)
def test_a_new_sampler_goes_on_where_the_loop_stood(partition: str) -> None:
    whole, sampler, resumed = (crew(partition)[2] for _ in range(3))
    list(whole), list(sampler)  # the first epoch
    loader = DataLoader(TensorDataset(torch.arange(60)), batch_size=4, sampler=sampler)
    batches = iter(loader)
    had = torch.cat([next(batches)[0] for _ in range(2)]).tolist()
    resumed.load_state_dict(sampler.state_dict(read=8))
    assert [*had, *resumed] == list(whole)
    assert list(resumed) == list(whole)


def test_a_state_that_was_resumed_can_be_saved_again() -> None:
    first, second, third = (crew("defdp")[0] for _ in range(3))
    second.load_state_dict(first.state_dict(read=5))
    third.load_state_dict(second.state_dict(read=6))
    assert list(third) == list(first)[11:]


@pytest.mark.parametrize("processes", [0, 2])
@pytest.mark.parametrize("batches", [1, 3])
def test_a_loader_that_has_fetched_the_whole_epoch_is_not_where_the_loop_stands(processes: int, batches: int) -> None:
    whole, sampler, resumed = (crew("defdp")[0] for _ in range(3))
    loader = DataLoader(TensorDataset(torch.arange(60)), batch_size=7, sampler=sampler, num_workers=processes)
    running = iter(loader)
    had = torch.cat([next(running)[0] for _ in range(batches)]).tolist()
    resumed.load_state_dict(sampler.state_dict(read=len(had)))
    assert [*had, *resumed] == list(whole)
    assert list(resumed) == list(whole)
    assert sampler.state_dict(read=0)["epoch"] == (1 if processes or batches == 3 else 0)


def test_workers_that_change_while_a_loader_is_ahead_lose_and_double_nothing() -> None:
    samplers, read = crew("seldp"), [20, 7, 12]
    had = [list(sampler)[:count] for sampler, count in zip(samplers, read, strict=True)]
    for worker, sampler in enumerate(samplers[:2]):
        sampler.repartition([0, 1], read, worker)
    assert sorted(index for part in (*had, *map(list, samplers[:2])) for index in part) == list(range(60))
    assert {sampler.epoch for sampler in samplers[:2]} == {1}


MEMBERS = st.lists(st.one_of(st.none(), st.integers(0, 3)), min_size=1, max_size=6).filter(
    lambda members: len({m for m in members if m is not None}) == sum(m is not None for m in members)
)


@settings(derandomize=True, max_examples=120, deadline=None)
@given(MEMBERS, st.lists(st.integers(0, 25), min_size=4, max_size=4))
def test_what_is_left_of_an_epoch_is_dealt_again_once(members: list[int | None], read: list[int]) -> None:
    orders = np.split(np.arange(100), 4)
    again = redealt(orders, read, members)
    left = [i for order, count in zip(orders, read, strict=True) for i in order[count:].tolist()]
    assert sorted(np.concatenate(again).tolist()) == sorted(left)
    sizes = [len(part) for part in again]
    if all(member is None for member in members):
        assert max(sizes) - min(sizes) <= 1


def test_who_stays_keeps_its_own_order() -> None:
    orders = np.split(np.arange(12), 3)
    again = redealt(orders, [1, 0, 0], [0, 2])
    assert again[0][:3].tolist() == [1, 2, 3]
    assert again[1][:4].tolist() == [8, 9, 10, 11]


@pytest.mark.parametrize("partition", PARTITIONS)
def test_workers_that_change_in_the_middle_of_an_epoch_lose_and_double_nothing(partition: str) -> None:
    samplers = crew(partition)
    read = [3, 2, 4]
    had = [take(sampler, count) for sampler, count in zip(samplers, read, strict=True)]
    newcomer = PartitionSampler(LABELS, partition, 0, 3, seed=7)
    members = [2, 0, None]
    kept = [samplers[2], samplers[0], newcomer]
    for worker, sampler in enumerate(kept):
        sampler.repartition(members, read, worker)
    resumed = PartitionSampler(LABELS, partition, 1, 3, seed=7)
    resumed.load_state_dict(kept[1].state_dict(read=0))
    assert list(resumed) == list(kept[1])
    rest = [list(kept[0]), had_rest(resumed, kept), list(kept[2])]
    assert sorted(index for part in [*had, *rest] for index in part) == list(range(60))
    assert sorted(index for sampler in kept for index in sampler) == list(range(60))


def take(sampler: PartitionSampler, count: int) -> list[int]:
    return [index for index, _ in zip(sampler, range(count), strict=False)]


def had_rest(resumed: PartitionSampler, kept: list[PartitionSampler]) -> list[int]:
    """What the second worker read of the epoch in which the workers changed, read once more."""
    again = PartitionSampler(LABELS, resumed.state_dict(0)["partition"], 1, 3, seed=7)
    again.repartition([2, 0, None], [3, 2, 4], 1)
    return list(again)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("shared", 0, 2), "'shared' deals no shards; use torch's DistributedSampler"),
        (("defdp", 2, 2), r"worker must be in \[0, 2\), the number of workers, but got 2"),
    ],
)
def test_bad_arguments_are_one_clear_line(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        PartitionSampler(LABELS, *arguments)


@pytest.mark.parametrize(
    ("sampler", "message"),
    [
        (
            PartitionSampler(LABELS, "seldp", 0, 3),
            "'defdp', seed 7, 60 samples but .* 'seldp', seed 0, 60",
        ),
        (PartitionSampler(LABELS, "defdp", 0, 3), "seed 7, 60 samples but this is of partition 'defdp', seed 0, 60"),
        (PartitionSampler(LABELS[:9], "defdp", 0, 3, seed=7), "60 samples but this is .* seed 7, 9 samples"),
        (PartitionSampler(LABELS, "defdp", 3, 4, seed=7), "the state is of 3 workers but this is worker 3; load it"),
    ],
)
def test_a_state_of_something_else_is_refused(sampler: PartitionSampler, message: str) -> None:
    with pytest.raises(PolyrhythmError, match=message):
        sampler.load_state_dict(crew("defdp")[0].state_dict(5))


@pytest.mark.parametrize(
    ("members", "read", "worker", "message"),
    [
        ([0, 0], [1, 1, 1], 0, r"members must name each of workers 0 to 2 at most once but got \[0, 0\]"),
        ([0, 7], [1, 1, 1], 0, r"members must name each of workers 0 to 2 at most once but got \[0, 7\]"),
        ([0, 1], [1, 1], 0, r"read must have 0 to \[20, 20, 20\] samples .* but got \[1, 1\]"),
        ([0, 1], [21, 1, 1], 0, r"read must have 0 to \[20, 20, 20\] samples .* but got \[21, 1, 1\]"),
        ([0, 1], [1, 1, 1], 2, r"worker must be in \[0, 2\), the number of workers, but got 2"),
        ([], [1, 1, 1], 0, r"worker must be in \[0, 0\), the number of workers, but got 0"),
    ],
)
def test_a_change_that_would_lose_or_double_samples_is_refused(
    members: list[int | None], read: list[int], worker: int, message: str
) -> None:
    sampler = crew("defdp")[0]
    with pytest.raises(PolyrhythmError, match=message):
        sampler.repartition(members, read, worker)
    assert list(sampler) == list(crew("defdp")[0])


def test_a_worker_between_two_epochs_stays_there_if_the_epoch_is_named() -> None:
    ahead, between = crew("defdp")[1:]
    for sampler in (ahead, between):
        list(sampler)
    next(iter(ahead))
    with pytest.raises(PolyrhythmError, match="epoch must be 1, where this worker's sampler stands, but got 2"):
        between.repartition([0, 1, 2], [0, 5, 0], 2, epoch=2)
    between.repartition([0, 1, 2], [0, 5, 0], 2, epoch=1)
    assert between.epoch == 1


def test_workers_that_the_partition_has_no_shards_for_change_nothing() -> None:
    sampler, same = (PartitionSampler(LABELS, "labels:1", 0, 5) for _ in range(2))
    with pytest.raises(PolyrhythmError, match="'labels:1' gives 4 workers 4 labels of 5"):
        sampler.repartition([0, 1, 2, 3], [1] * 5, 0)
    assert list(sampler) == list(same)
