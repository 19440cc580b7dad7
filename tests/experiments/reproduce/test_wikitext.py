"""The text of the language model: found, cut to few words, or refused in one line."""

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from polyrhythm.errors import DataError
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task
from polyrhythm_experiments.reproduce import Lab
from polyrhythm_experiments.reproduce.wikitext import RARE, WORDS, frequent, text_file

Labs = Callable[..., Lab]


def test_a_file_of_the_folder_is_taken(lab: Labs, tmp_path: Path) -> None:
    tmp_path.joinpath("wikitext2-test.txt").write_text("not this")
    tmp_path.joinpath("wikitext2-valid.txt").write_text(" = A = \n\n one two\n")
    assert Path(text_file(lab(data=str(tmp_path)))).read_text() == "= A = one two"


def test_it_is_downloaded_once_where_there_is_none(lab: Labs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(repository: str, subset: str, split: str) -> list[dict[str, str]]:
        asked.append((repository, subset, split))
        return [{"text": " one two \n"}, {"text": "three"}]

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    paths = [text_file(lab(data=str(tmp_path))) for _ in range(2)]
    assert Path(paths[1]).read_text() == "one two three"
    assert asked == [("Salesforce/wikitext", "wikitext-2-v1", "validation")]


def test_a_failed_download_is_one_clear_line(lab: Labs, monkeypatch: pytest.MonkeyPatch) -> None:
    def load_dataset(*_: str, split: str) -> None:
        raise ConnectionError(f"no route\nfor {split}")

    monkeypatch.setitem(sys.modules, "datasets", SimpleNamespace(load_dataset=load_dataset))
    with pytest.raises(DataError, match=r"no route for validation.*in the folder of --data") as caught:
        text_file(lab())
    assert "\n" not in str(caught.value)


def test_rare_words_become_one() -> None:
    words = frequent([*(f"w{k}" for k in range(WORDS)), *(f"w{k}" for k in range(WORDS)), "once"])
    assert len({*words}) == WORDS + 1
    assert words[-1] == RARE


def test_a_quick_look_needs_no_data(lab: Labs) -> None:
    config = TrainingConfig(task="text", tokens="word", data=text_file(lab(quick=True)))
    assert len(build_task(config).train) > 100
