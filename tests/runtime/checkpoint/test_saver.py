"""A worker's side of checkpoints, without a job: random numbers go on as if nothing had happened."""

from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.checkpoint.folder import partial_of
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.checkpoint.replica_state import ReplicaState
from polyrhythm.runtime.checkpoint.saver import ReplicaCheckpoints
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.worker.context import DrawnBatch
from polyrhythm.runtime.worker.loader import Accumulation, SessionLoader
from tests.runtime.jobs import Numbered, make_model, make_optimizer


class Source:
    """Grants an epoch's mini-batches from a sample on; a phase begins with the epoch, and perhaps `kept` streams."""

    generation = 0

    def __init__(self, checkpoints: ReplicaCheckpoints, start: int = 0, kept: bytes = b"") -> None:
        self.checkpoints, self.start, self.kept = checkpoints, start, kept
        self.captured = b""

    def begin_epoch(self, ready: Ready) -> None:
        self.checkpoints.drew(False)
        self.checkpoints.go_on(Mock(), self.kept)
        self.captured = self.checkpoints.streams()
        self.starts: Iterator[int] = iter(range(self.start, ready.dataset_samples, 4))

    def draw(self) -> DrawnBatch | None:
        start = next(self.starts, None)
        self.checkpoints.drew(start is not None)
        return None if start is None else DrawnBatch((SampleRange(0, start, start + 4),), start, 1, 4, 0)

    def dealt(self, draw: DrawnBatch, part: float, last: bool) -> bool:
        """It is no business of streams."""
        return True

    def end_epoch(self) -> bool:
        return True

    def skip_step(self, samples: int) -> None:
        """Steps are not made here."""


def numbers(source: Source, keep_after: int, most: int = 5) -> list[float]:
    """One random number for each mini-batch, and for so many at most; after some the streams are captured."""
    drawn = list[float]()
    for _ in SessionLoader(Numbered(20), 4, source, Accumulation(source), shuffle=False):
        drawn.append(float(torch.rand(())))
        if len(drawn) == keep_after:
            source.captured = source.checkpoints.streams()
        if len(drawn) == most:
            break
    return drawn


def test_a_checkpoint_that_the_script_does_not_come_to_is_told_of(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number, failed in ((1, True), (2, False)):
        model = make_model()
        optimizer = make_optimizer(model, lr=0.1)
        checkpoints = ReplicaCheckpoints(model, optimizer, str(tmp_path), Mock(), says=True)
        checkpoints.save(number, None)
        checkpoints.wait()
        folder = partial_of(tmp_path, number)
        checkpoints.read(str(folder))
        checkpoints.close(failed)
    said = f"checkpoint {folder} is of an epoch that the script has not come to, so its optimizer did not get its state"
    assert capsys.readouterr().err == f"polyrhythm: {said}\n"


def test_random_numbers_go_on_after_a_loop_that_was_left_early(tmp_path: Path) -> None:
    model = make_model()
    checkpoints = ReplicaCheckpoints(model, make_optimizer(model, lr=0.1), str(tmp_path), Mock(), says=False)
    first = Source(checkpoints)
    numbers(first, keep_after=0, most=2)
    whole = numbers(first, keep_after=0)
    torch.manual_seed(99)
    assert numbers(Source(checkpoints, kept=first.captured), keep_after=0) == whole


@pytest.mark.parametrize("made", [0, 2], ids=["before an epoch", "within it"])
def test_random_numbers_go_on_where_a_checkpoint_was_taken(tmp_path: Path, made: int) -> None:
    model = make_model()
    checkpoints = ReplicaCheckpoints(model, make_optimizer(model, lr=0.1), str(tmp_path), Mock(), says=False)
    first = Source(checkpoints)
    whole = numbers(first, keep_after=made)
    torch.manual_seed(99)  # what a script does before its loop
    assert numbers(Source(checkpoints, start=4 * made, kept=first.captured), keep_after=0) == whole[made:]


class Odd:
    """Keeps what no checkpoint can hold."""

    def state_dict(self) -> dict[str, torch.Tensor]:
        return {"phase": torch.tensor(1j)}

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Nothing is read back."""


def test_what_a_checkpoint_is_without_is_said_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, told = make_model(), Mock()
    optimizer = make_optimizer(model, lr=0.1)
    optimizer.param_groups[0]["filter"] = {1, 2}
    checkpoints = ReplicaCheckpoints(model, optimizer, str(tmp_path), told, says=False)
    for number in (1, 2):
        checkpoints.save(number, None)
    checkpoints.wait()
    assert [call.args[0].trouble for call in told.call_args_list] == ["", ""]
    line = "filter of the optimizer is or has a set, which a checkpoint cannot keep; it begins anew after one"
    assert capsys.readouterr().err == f"polyrhythm: {line}\n"


def test_what_cannot_be_kept_is_told_of(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what nobody foresaw: the next checkpoint would wait for this one for ever."""
    model, told = make_model(), Mock()
    checkpoints = ReplicaCheckpoints(model, make_optimizer(model, lr=0.1), str(tmp_path), told, says=False)
    checkpoints.kept["odd"] = Odd()
    checkpoints.save(1, None)
    (saved,) = told.call_args.args
    assert "has a complex tensor in its state_dict" in saved.trouble
    checkpoints.kept.clear()
    monkeypatch.setattr(ReplicaState, "write", Mock(side_effect=TypeError("unforeseen")))
    checkpoints.save(2, None)
    checkpoints.wait()
    told.assert_called_with(Saved(2, trouble="unforeseen"))
