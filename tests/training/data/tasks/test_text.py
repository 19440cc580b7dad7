from pathlib import Path

import msgspec
import pytest
import torch

from polyrhythm.errors import DataError
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task
from polyrhythm.training.data.tasks.text import CONTEXT, encode, text_task


def test_targets_are_the_next_tokens(tmp_path: Path) -> None:
    tmp_path.joinpath("a.txt").write_text("abcde " * 200)
    task = text_task(str(tmp_path / "a.txt"))
    assert task.train.inputs.shape == (1080 // CONTEXT, CONTEXT)
    assert torch.equal(task.train.inputs[:, 1:], task.train.targets[:, :-1])
    assert torch.equal(task.train.inputs[1:, 0], task.train.targets[:-1, -1])
    assert len(task.test) == 119 // CONTEXT


def test_words_are_told_apart_by_frequency(tmp_path: Path) -> None:
    numbers, vocabulary = encode(["a", "b", "b", "c", "b", "a"])
    assert numbers.tolist() == [1, 0, 0, 2, 0, 1]
    assert vocabulary == 4
    tmp_path.joinpath("a.txt").write_text("one two three\nfour " * 100)
    task = build_task(TrainingConfig(task="text", tokens="word", data=str(tmp_path / "a.txt")))
    assert task.train.inputs.max() == 3
    quality = task.evaluate(task.build(0))
    assert 0 <= quality.accuracy <= 1


def test_the_small_transformer_is_narrower(tmp_path: Path) -> None:
    tmp_path.joinpath("a.txt").write_text("abcde " * 200)
    config = TrainingConfig(task="text", data=str(tmp_path / "a.txt"))
    sizes = [
        sum(each.numel() for each in build_task(found).build(0).parameters())
        for found in (config, msgspec.structs.replace(config, model="transformer-small"))
    ]
    assert sizes[1] < sizes[0] / 5


def test_a_missing_or_short_text_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"needs training.data, a text file"):
        text_task(None)
    with pytest.raises(DataError, match="cannot be read"):
        text_task(str(tmp_path / "none.txt"))
    tmp_path.joinpath("binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(DataError, match="cannot be read"):
        text_task(str(tmp_path / "binary"))
    tmp_path.joinpath("short.txt").write_text("abc")
    with pytest.raises(DataError, match=r"has 3 chars; give at least 360"):
        text_task(str(tmp_path / "short.txt"))
