"""``--partition`` and ``--injection`` for scripts that know nothing of them."""

import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from polyrhythm.errors import NotedRefusalError, RefusalError
from polyrhythm.runtime.script import notices
from polyrhythm.runtime.script.data.dealing import Dealing
from polyrhythm.runtime.script.data.order import JOB_SEED
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.training.data.partition import deal, parse_partition
from tests.runtime.script.runs import Run, adapted, try_adapted

SAMPLES, EPOCHS = 44, 3
EVERY = list(range(SAMPLES))


def weights(run: Run, rank: int = 0) -> list[float]:
    return [float(word) for word in (run.folder / f"weights.{rank}").read_text(encoding="utf-8").split()]


@pytest.mark.parametrize("partition", ["defdp", "seldp", "labels:1"])
def test_ranks_read_their_own_shards_from_the_first_step_on(tmp_path: Path, partition: str) -> None:
    run = adapted(tmp_path, "dealt.py", "ranks", partition=partition, stand_in=False)
    dealt = deal(parse_partition(partition), np.arange(SAMPLES) % 2, 2, seed=0)
    for rank in run.ranks:
        assert run.epochs_of(rank) == [dealt.order(rank, epoch).tolist() for epoch in range(EPOCHS)]
    assert weights(run, 0) == weights(run, 1) == [EPOCHS / 2] * SAMPLES  # a step has the mean of two ranks


@pytest.mark.parametrize("policy", ["bsp", "local:2"])
def test_a_script_for_one_process_begins_in_the_shard_of_the_first(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "dealt.py", partition="seldp", policy=policy, stand_in=False)
    first, second = run.epochs_of(0), run.epochs_of(1)
    assert second[0][:4] == first[0][:4]  # the warm-up step, of which the first rank's step counts
    dealt = deal(parse_partition("seldp"), np.zeros(SAMPLES), 2, seed=JOB_SEED)
    counted = 0
    for rank, seen in enumerate([first, [second[0][4:], *second[1:]]]):
        passes = [index for epoch in range(EPOCHS + 1) for index in dealt.order(rank, epoch).tolist()]
        flat = [index for part in seen for index in part]
        assert flat == passes[: len(flat)]
        counted += len(flat)
    assert counted == SAMPLES * EPOCHS


def test_servers_have_each_sample_of_each_pass_once(tmp_path: Path) -> None:
    run = adapted(tmp_path, "dealt.py", "ranks", partition="defdp", policy="asp", stand_in=False)
    seen = [[index for epoch in run.epochs_of(rank) for index in epoch] for rank in run.ranks]
    dealt = deal(parse_partition("defdp"), np.zeros(SAMPLES), 2, seed=0)
    for rank, flat in enumerate(seen):
        passes = [index for epoch in range(2 * EPOCHS) for index in dealt.order(rank, epoch).tolist()]
        assert flat == passes[: len(flat)]
    assert sum(map(len, seen)) == SAMPLES * EPOCHS
    assert sum(weights(run)) * 2 == SAMPLES * EPOCHS


@pytest.mark.parametrize("what", [("ranks", "parts"), ("parts",), ("ranks", "drop")])
def test_accumulation_and_drop_last_lose_nothing(tmp_path: Path, what: tuple[str, ...]) -> None:
    run = adapted(tmp_path, "dealt.py", *what, partition="defdp", stand_in=False)
    warm_up = 0 if "ranks" in what else 8  # is the first rank's
    dealt, counted = deal(parse_partition("defdp"), np.zeros(SAMPLES), 2, "ranks" not in what), 0
    for rank in run.ranks:
        flat = [index for epoch in run.epochs_of(rank) for index in epoch][rank * warm_up :]
        passes = [index for epoch in range(EPOCHS + 1) for index in dealt.order(rank, epoch).tolist()]
        assert flat == passes[: len(flat)]
        counted += len(flat)
    assert counted == EPOCHS * (40 if "drop" in what else SAMPLES)


def test_others_samples_come_with_a_rank_s_own(tmp_path: Path) -> None:
    run = adapted(tmp_path, "dealt.py", "ranks", partition="labels:1", injection="0.5,1.0", stand_in=False)
    own = [[index for epoch in run.epochs_of(rank) for index in epoch if index % 2 == rank] for rank in run.ranks]
    for rank in run.ranks:
        kinds = {index % 2 for epoch in run.epochs_of(rank) for index in epoch}
        assert kinds == {0, 1}
        assert [index % 2 for index in run.epochs_of(rank)[0][:4]] == [rank] * 4  # the first step is torch's
        assert sorted(own[rank]) == sorted([index for index in EVERY if index % 2 == rank] * EPOCHS)
    assert run.stdout(0) == ["schedule 18"], "as often as the script alone: six steps an epoch"


def test_a_host_that_was_started_otherwise_is_refused() -> None:
    dealing = Dealing({"POLYRHYTHM_PARTITION": "seldp"}, rank=1, workers=2)
    dealing.check_job(JobConfig(partition="seldp"), "train.py:7")
    with pytest.raises(RefusalError, match=r"^train.py:7: the job was started with --partition defdp, and this"):
        dealing.check_job(JobConfig(partition="defdp"), "train.py:7")
    with pytest.raises(RefusalError, match=r"the script's first step has taken its whole first epoch"):
        dealing.check_begin(0, "train.py:7")


def test_a_loader_that_only_a_look_is_taken_at_may_have_an_order_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script has caught nothing that we only ask ourselves."""
    monkeypatch.setattr(NotedRefusalError, "first", None)
    monkeypatch.setattr(NotedRefusalError, "alive", weakref.WeakSet())
    numbers: Any = range(4)
    loader: DataLoader[int] = DataLoader(numbers, batch_size=2)
    dealing = Dealing({"POLYRHYTHM_PARTITION": "seldp"}, rank=0, workers=2)
    given = dealing.warm_up_batches(loader, False, lambda each: each._get_iterator())
    assert [batch.tolist() for batch in given] == [[0, 1], [2, 3]]
    assert notices.caught() == ""


@pytest.mark.parametrize(
    ("what", "settings", "line", "reason"),
    [
        (("own",), {"partition": "seldp"}, "batch_sampler=", "--partition seldp needs samples that the job deals out"),
        (("own",), {"injection": "0.5,0.5"}, "batch_sampler=", "--injection 0.5,0.5 needs samples that the job deals"),
        (("ordered",), {"partition": "seldp"}, "DataLoader(data, shuffle", "SequentialSampler with an order of its"),
        (
            ("ranks", "ordered"),
            {"partition": "seldp"},
            "DistributedSampler(data",
            "DistributedSampler with an order of",
        ),
        (("parts",), {"injection": "0.5,0.5"}, "DataLoader(data, shuffle", "adds up the gradients of 2 for a step"),
        ((), {"partition": "sizes:1,1,1"}, "DataLoader(data, shuffle", "--partition = 'sizes' has 3 ratios for 1 work"),
        ((), {"injection": "0.5,0.5", "policy": "asp"}, "DataLoader(data, shuffle", "policy asp lets them run apart"),
    ],
)
def test_what_cannot_be_honoured_is_one_line(
    tmp_path: Path, what: tuple[str, ...], settings: dict[str, str], line: str, reason: str
) -> None:
    run = try_adapted(tmp_path, "dealt.py", *what, ranks=1, stand_in=False, **settings)
    assert run.codes == [2], run.stderr()
    script = (Path(__file__).parent / "scripts" / "dealt.py").read_text(encoding="utf-8").splitlines()
    (number,) = (number for number, text in enumerate(script, 1) if line in text)
    last = run.stderr().splitlines()[-1]
    assert f"dealt.py:{number}: " in last
    assert reason in last
