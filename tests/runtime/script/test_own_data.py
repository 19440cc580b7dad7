"""Scripts whose data no job can deal out: every worker reads its own, as it does under torchrun."""

from pathlib import Path
from typing import Any

import pytest

from polyrhythm.core import Trace
from tests.runtime.script.runs import Run, adapted, plain, try_adapted

EVERY = list(range(96))
EPOCHS = "2"
WAYS = ("stream", "buckets", "twice", "ahead", "pairs", "closure", "drawn", "counted", "grouped")


def weights(run: Run) -> list[str]:
    """Parameters at the end of each epoch, which all ranks must have."""
    texts = [[path.read_text() for path in sorted(run.folder.glob(f"weights.{rank}.*"))] for rank in run.ranks]
    assert all(each == texts[0] for each in texts)
    return texts[0]


@pytest.mark.parametrize("what", WAYS)
def test_under_bsp_a_script_with_ranks_does_what_it_does_under_torchrun(tmp_path: Path, what: str) -> None:
    theirs = plain(tmp_path / "theirs", "own.py", what, "ddp", EPOCHS, stand_in=False)
    ours = adapted(tmp_path / "ours", "own.py", what, "ddp", EPOCHS, stand_in=False)
    assert [ours.epochs_of(rank) for rank in ours.ranks] == [theirs.epochs_of(rank) for rank in theirs.ranks]
    assert weights(ours) == weights(theirs)


@pytest.mark.parametrize(
    ("what", "policy"),
    [
        ("stream", "asp"),
        ("drawn", "local:8"),
        ("ahead", "selsync:delta=0.3"),
        ("counted", "asp"),
        ("counted", "local:5"),
        ("grouped", "asp"),
    ],
)
def test_every_rank_reads_its_own_under_any_policy(tmp_path: Path, what: str, policy: str) -> None:
    run = adapted(tmp_path, "own.py", what, "ddp", EPOCHS, policy=policy, stand_in=False)
    weights(run)
    assert all(len(epoch) == 48 for rank in run.ranks for epoch in run.epochs_of(rank))


def test_a_loop_that_is_left_early_ends_the_epoch_for_what_follows_it(tmp_path: Path) -> None:
    run = adapted(tmp_path, "own.py", "left", "ddp", EPOCHS, policy="asp", stand_in=False)
    weights(run)
    assert all(len(epoch) == 24 for rank in run.ranks for epoch in run.epochs_of(rank))


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4"])
def test_ranks_may_have_unequal_numbers_of_mini_batches(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "own.py", "uneven", "ddp", EPOCHS, policy=policy, stand_in=False)
    weights(run)
    assert [len(run.epochs_of(rank)[1]) for rank in run.ranks] == [48, 28]


@pytest.mark.parametrize(
    "policy",
    [
        "local:4",
        "local:16",
        "selsync:delta=0.9",
        "diloco:h=16,lr=1,momentum=0",
        "diloco:h=8,fragments=2,lr=1,momentum=0",
    ],
)
def test_who_has_no_data_left_takes_part_in_an_exchange_before_others_go_on(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "uneven.py", "counts", policy=policy, stand_in=False)
    ends = [[*map(float, (run.folder / f"counts.{rank}").read_text().split())] for rank in run.ranks]
    assert ends[0] == ends[1]
    assert min(ends[0][36:]) >= 1.5, "rank 1's, of the mean of two in three epochs"


@pytest.mark.parametrize("policy", ["bsp", "local:16", "asp"])
def test_one_rank_may_have_a_single_mini_batch(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "uneven.py", "counts", "never", "1", policy=policy, stand_in=False)
    ends = [[*map(float, (run.folder / f"counts.{rank}").read_text().split())] for rank in run.ranks]
    assert ends[0] == ends[1]
    assert ends[0][36:40] == [1.5] * 4, "in each of three epochs, of the mean of two"


@pytest.mark.parametrize("policy", ["local:16", "asp"])
def test_one_rank_may_leave_its_loop_in_every_epoch(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "uneven.py", "counts", "3", policy=policy, stand_in=False)
    ends = [(run.folder / f"counts.{rank}").read_text() for rank in run.ranks]
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    ("what", "policy"),
    [("stream", "bsp"), ("pairs", "bsp"), ("buckets", "asp"), ("weighted", "asp"), ("drawn", "asp")],
)
def test_workers_split_what_a_single_process_would_read(tmp_path: Path, what: str, policy: str) -> None:
    run = adapted(tmp_path, "own.py", what, "alone", EPOCHS, policy=policy, stand_in=False)
    if what != "drawn" or policy == "bsp":  # nobody knows where the loop ends
        weights(run)
    first, second = (run.epochs_of(rank)[1] for rank in run.ranks)
    if what in ("stream", "buckets"):
        assert sorted(first + second) == EVERY
    assert first != second


def test_what_a_script_reads_itself_cannot_be_dealt_in_shares(tmp_path: Path) -> None:
    run = try_adapted(tmp_path, "own.py", "stream", "ddp", EPOCHS, policy="balanced", stand_in=False)
    assert "the script reads its data itself" in run.stderr()
    assert run.codes == [2, 2]


@pytest.mark.parametrize("policy", ["bsp", "asp", "local:4", "diloco:8", "selsync:delta=0.3"])
def test_many_forward_passes_may_belong_to_a_step_and_each_worker_may_find_its_end(tmp_path: Path, policy: str) -> None:
    run = adapted(tmp_path, "episodes.py", "400", policy=policy, stand_in=False)
    ends = [(run.folder / f"weights.{rank}").read_text(encoding="utf-8").split() for rank in run.ranks]
    assert [solved for _, solved in ends] == ["True", "True"]


@pytest.mark.parametrize("what", ["tensors", "evaluating", "once", "own parameters"])
def test_no_model_need_be_called_in_training_mode_and_no_second_mini_batch_be_read(tmp_path: Path, what: str) -> None:
    run = adapted(tmp_path, "bare.py", what, stand_in=False)
    first, second = ((run.folder / f"weights.{rank}").read_text(encoding="utf-8") for rank in run.ranks)
    assert first == second
    assert "SGD.step follows the policy" in run.stderr()


@pytest.mark.parametrize(("lengths", "half"), [((10, 2), 4 * 24), ((6, 6), 4 * 24), ((8, 2, 2), 4 * 24)])
def test_a_share_is_one_of_the_samples_of_all_workers(tmp_path: Path, lengths: tuple[int, ...], half: int) -> None:
    """Under bsp the first to end costs the others a mini-batch in each epoch."""
    settings: dict[str, Any] = {"policy": "switch:bsp@0.5,asp", "trace": str(tmp_path / "traces"), "stand_in": False}
    adapted(tmp_path / "run", "lengths.py", "4", *map(str, lengths), ranks=len(lengths), **settings)
    headers = [Trace.load(path).header for path in sorted((tmp_path / "traces").iterdir())]
    policies = [header.policy for header in headers]
    began = headers[policies.index("asp")].cluster.processed_samples
    assert half - 12 <= began <= half + 12
    assert set(policies[policies.index("asp") :]) == {"asp"}
