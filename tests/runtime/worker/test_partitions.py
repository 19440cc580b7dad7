"""Real jobs whose workers read shards of their own."""

import os
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import Dataset, Subset, TensorDataset

import polyrhythm
from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.worker.loader import asked_data, dealt_to, labels_of
from polyrhythm.training.data.partition import deal, parse_partition
from tests.runtime.jobs import Numbered, make_model, make_optimizer, run_job, step

SAMPLES, EPOCHS = 45, 3


def read(rank: int, workers: int, policy: str, partition: str, switch: str, processes: int) -> list[list[int]]:
    """Train; what this worker read in each epoch. Switch in the middle of the second."""
    os.environ["WORLD_SIZE"] = str(workers)
    data = Numbered(SAMPLES)
    seen: list[list[int]] = []
    model = make_model(seed=rank)
    made = make_optimizer(model, lr=0.1)
    with polyrhythm.session(model, made, policy) as session:
        for epoch in range(EPOCHS):
            seen.append([])
            options: dict[str, Any] = {
                "num_workers": processes,
                "multiprocessing_context": "fork" if processes else None,
            }
            loader = session.loader(data, 4, partition=partition, labels=data.y, seed=3, **options)
            for number, (x, y, indices) in enumerate(loader):
                seen[-1] += indices.tolist()
                step(model, made, x, y)
                if switch and (rank, epoch, number) == (0, 1, 1):
                    session.switch(switch)
    return seen


@pytest.mark.parametrize("partition", ["defdp", "seldp"])
@pytest.mark.parametrize("policy", ["bsp", "local:2"])
def test_in_lockstep_an_epoch_is_a_pass_of_everyone(policy: str, partition: str) -> None:
    found = run_job(read, 3, 3, policy, partition, "", 0, policy=policy)
    dealt = deal(parse_partition(partition), np.zeros(SAMPLES), 3, seed=3)
    for epoch in range(EPOCHS):
        assert [seen[epoch] for seen in found] == [dealt.order(worker, epoch).tolist() for worker in range(3)]


def test_a_worker_goes_round_its_own_shard_at_its_own_pace() -> None:
    found = run_job(read, 2, 2, "asp", "sizes:39,6", "", 0, policy="asp")
    dealt = deal(parse_partition("sizes:39,6"), np.zeros(SAMPLES), 2, seed=3)
    assert sum(len(part) for seen in found for part in seen) == SAMPLES * EPOCHS
    for worker, seen in enumerate(found):
        flat = [index for part in seen for index in part]
        passes = [index for epoch in range(60) for index in dealt.order(worker, epoch).tolist()]
        assert flat == passes[: len(flat)]


@pytest.mark.parametrize(("policy", "switch"), [("bsp", "asp"), ("ssp:1", "local:2")])
def test_a_switch_and_fetching_ahead_lose_and_double_nothing(policy: str, switch: str) -> None:
    found = run_job(read, 2, 2, policy, "labels:3", switch, 1, policy=policy)
    assert sum(len(part) for seen in found for part in seen) == SAMPLES * EPOCHS
    dealt = deal(parse_partition("labels:3"), Numbered(SAMPLES).y.numpy(), 2, seed=3)
    for worker, seen in enumerate(found):
        counts = Counter(index for part in seen for index in part)
        assert counts.keys() <= set(dealt.indices[worker].tolist())
        assert max(counts.values()) - min(counts.values()) <= 1  # full passes, and a part of one


def test_labels_come_from_where_a_data_set_has_them() -> None:
    partition, x, y = parse_partition("sorted"), torch.zeros(4, 2), torch.tensor([1, 0, 1, 0])
    assert labels_of(partition, TensorDataset(x, y), None).tolist() == [1, 0, 1, 0]
    assert labels_of(partition, TensorDataset(x), [0, 0, 1, 1]).tolist() == [0, 0, 1, 1]
    assert labels_of(parse_partition("defdp"), TensorDataset(x), None).tolist() == [0, 0, 0, 0]


class Bare(Dataset[int]):
    def __len__(self) -> int:
        return 5


def test_missing_labels_and_a_worker_without_a_shard_are_one_clear_line() -> None:
    with pytest.raises(PolyrhythmError, match=r"reads one label a sample, and Bare .*\.loader\(labels=\.\.\.\)"):
        dealt_to("labels:1", Bare(), None, 0, 2, 0)
    with pytest.raises(PolyrhythmError, match="rank 2 has no shard: partition 'seldp' deals one to each of 2"):
        dealt_to("seldp", Bare(), None, 2, 2, 0)
    assert dealt_to("shared", Bare(), None, 2, 2, 0) is None


def test_a_job_of_another_partition_reads_by_that() -> None:
    found = run_job(read, 2, 2, "bsp", "labels:3", "", 0, policy="bsp", partition="seldp")
    dealt = deal(parse_partition("seldp"), np.zeros(SAMPLES), 2, seed=3)
    for worker, seen in enumerate(found):
        flat = [index for part in seen for index in part]
        assert flat == [index for epoch in range(EPOCHS + 1) for index in dealt.order(worker, epoch)][: len(flat)]


def test_the_call_holds_over_the_loader(capsys: pytest.CaptureFixture[str]) -> None:
    config = JobConfig(partition="seldp", injection="0.5,1", given={"partition": "--partition"})
    assert asked_data(config, 0, "defdp", (0.5, 0.5)) == ("seldp", (0.5, 0.5))
    assert capsys.readouterr().err == "polyrhythm: --partition seldp holds; defdp of session.loader is overruled\n"
    assert asked_data(config, 1, "defdp", None) == ("seldp", None)
    assert asked_data(JobConfig(), 0, None, None) == ("shared", None)
    assert capsys.readouterr().err == ""


def test_a_subset_has_the_labels_of_its_data_set() -> None:
    data = TensorDataset(torch.zeros(4, 2), torch.tensor([3, 2, 1, 0]))
    assert labels_of(parse_partition("sorted"), Subset(data, [2, 0]), None).tolist() == [1, 3]


@pytest.mark.parametrize("value", ["", 0, -1, [], {}, 1.5, True])
def test_a_partition_that_is_none_is_one_line(value: Any) -> None:
    asked, _ = asked_data(JobConfig(), 0, value, None)
    with pytest.raises(UsageError, match=r"^partition: (a partition is text|unknown partition '')"):
        dealt_to(asked, Numbered(SAMPLES), None, 0, 2, 0)
