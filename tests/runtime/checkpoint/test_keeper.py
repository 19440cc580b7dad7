"""The coordinator's side of checkpoints: what workers say of them, in any order."""

from functools import partial
from pathlib import Path
from shutil import rmtree
from threading import Event
from unittest.mock import Mock

import pytest

from polyrhythm.core.workload import Workload
from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.folder import make_partial, partial_of
from polyrhythm.runtime.checkpoint.keeper import CheckpointKeeper
from polyrhythm.runtime.checkpoint.manifest import JobSnapshot, Position, Saved
from polyrhythm.runtime.checkpoint.service import JobCheckpoints
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Ready


def snapshot(number: int) -> JobSnapshot:
    """Of the start of a job, which rank 0 writes."""
    position = Position(0, 0, 0, 0, 0, Workload(8, 8).state(), Ready(0, 8, 2))
    return JobSnapshot(number, position, "bsp", "bsp", "", {})


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*checkpoint*"))


@pytest.fixture
def keeper(tmp_path: Path) -> CheckpointKeeper:
    return CheckpointKeeper(JobConfig(checkpoint=str(tmp_path)), Mock())


@pytest.mark.parametrize("first", ["written", "all stand"])
def test_a_worker_may_have_written_before_all_stand_at_a_checkpoint(
    keeper: CheckpointKeeper, tmp_path: Path, first: str
) -> None:
    for number in (1, 2):
        calls = [partial(keeper.keep, snapshot(number)), partial(keeper.saved, 0, Saved(number), begins=number)]
        for call in calls if first == "all stand" else reversed(calls):
            call()
        assert not keeper.busy
    keeper.close()
    assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]


def test_a_folder_that_is_removed_while_the_job_runs_is_made_again(
    keeper: CheckpointKeeper, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    rmtree(tmp_path)
    make_partial(partial_of(tmp_path, 1))  # as a worker does first
    for number in (1, 2):
        keeper.keep(snapshot(number))
        keeper.saved(0, Saved(number))
    keeper.close()
    assert names(tmp_path) == ["checkpoint-000001", "checkpoint-000002"]
    assert [text for text in caplog.messages if "removed" in text] == [
        f"{tmp_path} was removed while the job runs; it is made again, without what it had"
    ]


@pytest.mark.parametrize("first", ["failed", "all stand"])
def test_after_one_that_could_not_be_written_comes_the_next(
    keeper: CheckpointKeeper, tmp_path: Path, first: str, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / ".checkpoint-000001.partial").mkdir()
    full = Saved(1, trouble="No space left on device")
    calls = [partial(keeper.keep, snapshot(1)), partial(keeper.saved, 0, full, begins=1)]
    for call in calls if first == "all stand" else reversed(calls):
        call()
    assert not keeper.busy
    assert "cannot be written to" in caplog.text
    keeper.keep(snapshot(2))
    keeper.saved(0, Saved(2))
    keeper.close()
    assert names(tmp_path) == ["checkpoint-000002"]


def test_one_at_which_not_all_came_to_stand_is_dropped(keeper: CheckpointKeeper, tmp_path: Path) -> None:
    (tmp_path / ".checkpoint-000001.partial").mkdir()
    keeper.saved(0, Saved(1), begins=1)
    keeper.keep(snapshot(2))
    assert keeper.busy
    keeper.close()
    assert names(tmp_path) == []


@pytest.mark.parametrize(("worker", "begins"), [(1, 1), (0, 0)], ids=["another worker", "before it begins"])
def test_a_word_of_another_time_says_nothing(
    keeper: CheckpointKeeper, tmp_path: Path, worker: int, begins: int
) -> None:
    """As from before the death of a coordinator, which has begun a checkpoint of the same number."""
    keeper.saved(worker, Saved(1), begins)
    keeper.keep(snapshot(1))
    assert keeper.busy
    keeper.saved(0, Saved(1))
    keeper.close()
    assert names(tmp_path) == ["checkpoint-000001"]


def test_what_is_being_written_when_a_coordinator_dies_has_a_number_of_its_own(tmp_path: Path) -> None:
    """The worker goes on writing, and tells the next coordinator."""
    CheckpointKeeper(JobConfig(checkpoint=str(tmp_path)), Mock()).close()
    (tmp_path / ".checkpoint-000007.partial").mkdir()
    keeper = CheckpointKeeper(JobConfig(checkpoint=str(tmp_path)), Mock())
    keeper.close()
    assert keeper.latest == 7


def test_a_phase_may_begin_without_the_worker_that_was_to_write(tmp_path: Path) -> None:
    checkpoints = under_way(tmp_path, members={1: None})
    checkpoints.lost(0)
    checkpoints.keep(snapshot(1))
    assert checkpoints._keeper is not None
    assert not checkpoints._keeper.busy
    checkpoints.close()


def under_way(folder: Path, members: dict[int, None], epoch: int = 0, of_script: bool = False) -> JobCheckpoints:
    """Of a job with these workers, whose coordinator does what it is asked at once."""
    loop = Mock(call_from_thread=lambda call: call())
    coordinator = Mock(job=Mock(members=members, epoch=epoch), snapshots=Mock(of_script=of_script))
    checkpoints = JobCheckpoints(loop, coordinator, lambda call: call())
    checkpoints.open(JobConfig(checkpoint=str(folder)), under_way=False)
    return checkpoints


def write(checkpoints: JobCheckpoints, number: int, trouble: str = "") -> None:
    """The worker says how it went, and the disk has it or not."""
    keeper = checkpoints._keeper
    assert keeper is not None
    keeper.saved(0, Saved(number, trouble=trouble))
    wait_for_disk(checkpoints)


def wait(event: Event) -> None:
    event.wait()


def wait_for_disk(checkpoints: JobCheckpoints) -> None:
    """Until all is done that the keeper's thread has to do."""
    assert checkpoints._keeper is not None
    done = Event()
    checkpoints._keeper._tasks.put(done.set)
    done.wait()


def test_who_asks_for_a_checkpoint_hears_when_it_is_kept(tmp_path: Path) -> None:
    checkpoints, heard = under_way(tmp_path, members={0: None}), list[str]()
    checkpoints.take(heard.append)
    checkpoints.keep(snapshot(1))
    assert heard == []
    write(checkpoints, 1)
    assert heard == [""]
    assert names(tmp_path) == ["checkpoint-000001"]
    checkpoints.close()


def test_one_that_is_being_written_is_not_the_one_that_is_asked_for(tmp_path: Path) -> None:
    checkpoints, heard = under_way(tmp_path, members={0: None}), list[str]()
    save: Mock = checkpoints._coordinator.save  # type: ignore[assignment]
    checkpoints.keep(snapshot(1))
    checkpoints.take(heard.append)
    save.assert_not_called()
    write(checkpoints, 1)
    save.assert_called_once()
    checkpoints.keep(snapshot(2))
    assert heard == []
    write(checkpoints, 2, "No space left on device")
    assert heard == ["checkpoint 2 cannot be written: No space left on device"]
    checkpoints.close()


def test_all_who_are_asked_to_end_have_one_last_checkpoint(tmp_path: Path) -> None:
    """Under torchrun each worker asks for one; those who had it left while a second one was taken for the others."""
    checkpoints, heard = under_way(tmp_path, members={0: None}), list[str]()
    save: Mock = checkpoints._coordinator.save  # type: ignore[assignment]
    checkpoints.keep(snapshot(1))
    checkpoints.take(heard.append, last=True)
    save.assert_not_called()  # that of before is nobody's last
    write(checkpoints, 1)
    save.assert_called_once()
    checkpoints.take(heard.append, last=True)
    checkpoints.keep(snapshot(2))
    checkpoints.take(heard.append, last=True)
    assert heard == []
    save.reset_mock()
    write(checkpoints, 2)
    assert heard == ["", "", ""]
    save.assert_not_called()
    checkpoints.close()


def test_nor_is_one_that_the_disk_is_yet_to_have(tmp_path: Path) -> None:
    checkpoints, heard, held = under_way(tmp_path, members={0: None}), list[str](), Event()
    keeper = checkpoints._keeper
    assert keeper is not None
    keeper._tasks.put(partial(wait, held))
    checkpoints.keep(snapshot(1))
    keeper.saved(0, Saved(1))
    checkpoints.take(heard.append)
    held.set()
    wait_for_disk(checkpoints)
    assert names(tmp_path) == ["checkpoint-000001"]
    assert heard == []
    checkpoints.keep(snapshot(2))
    write(checkpoints, 2)
    assert heard == [""]
    checkpoints.close()


def test_where_nothing_can_be_kept_a_checkpoint_is_refused(tmp_path: Path) -> None:
    for checkpoints, why in (
        (JobCheckpoints(Mock(), Mock(), Mock()), "it keeps no checkpoints; start it with --checkpoint DIR"),
        (under_way(tmp_path / "early", {0: None}, epoch=-1), "it has not begun to train"),
        (under_way(tmp_path / "script", {0: None}, of_script=True), "its script keeps snapshots of its own"),
    ):
        with pytest.raises(UsageError, match=why):
            checkpoints.take(pytest.fail)
        checkpoints.close()
