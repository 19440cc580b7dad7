"""In which epoch of the job a script is that comes late."""

import pytest

from polyrhythm.errors import RefusalError
from polyrhythm.runtime.launch.restarts import JOINED, MOST
from polyrhythm.runtime.script.training.epoch_number import place_beside_others, tell_unplaced


@pytest.mark.parametrize(("number", "counted_from", "epoch"), [(0, 0, 0), (4, 0, 4), (4, 3, 1), (3, 3, 0)])
def test_it_is_where_its_loop_says(number: int, counted_from: int, epoch: int) -> None:
    assert place_beside_others(0, number, counted_from) == (epoch, counted_from)


def test_a_warm_up_step_of_a_whole_epoch_counts_by_the_loop() -> None:
    assert place_beside_others(1, 3, 2) == (1, 2)


@pytest.mark.parametrize(("seen", "number"), [(0, 2), (1, 3)])
def test_it_cannot_begin_before_the_job(seen: int, number: int) -> None:
    with pytest.raises(RefusalError, match="its loop begins with epoch 2, and that of the job with epoch 3"):
        place_beside_others(seen, number, 3)


def test_it_must_be_a_number() -> None:
    with pytest.raises(RefusalError, match="and has loaded parameters, but no loop over epochs says by a number"):
        place_beside_others(0, None, 0)


@pytest.mark.parametrize(("most", "told"), [("1", True), ("0", False)])
def test_the_first_process_is_told_before(
    most: str, told: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(MOST, most)
    monkeypatch.setenv(JOINED, "")
    tell_unplaced()
    assert ("a worker that is started again (--max-restarts) will be refused" in capsys.readouterr().err) == told
