"""What a reproduction leaves behind, and how the command answers."""

import json
import signal
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner, Result

from polyrhythm.cli.app import app
from polyrhythm_experiments.reproduce import PAPERS
from polyrhythm_experiments.reproduce.lab import Lab


@pytest.fixture
def call(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """The command in an empty folder, knowing a tiny paper."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(PAPERS, "tiny", "tests.experiments.reproduce.conftest")
    return lambda *words: CliRunner().invoke(app, ["reproduce", *words])


def test_the_page_has_its_command_rows_tables_and_figures(call: Callable[..., Result], tmp_path: Path) -> None:
    done = call("tiny", "--seeds", "2")
    assert done.exit_code == 0, done.output
    text = (tmp_path / "reproduction-tiny" / "tiny.md").read_text(encoding="utf-8")
    assert text.startswith("# Tiny\n\n```sh\npolyrhythm reproduce tiny --seeds 2\n```\n\nNobody, 2020.\n")
    assert "| samples/s over BSP | table 1 | 2x | 2.5x (2.5x to 2.5x) | a \\| b |" in text
    for part in ("| cluster | 3 workers |", "## Speed\n\nWords.", "**T**\n\n| k | v |", "![Lines](tiny-lines.svg)"):
        assert part in text
    assert text.endswith("## Not here\n\n- all else\n")


def test_figures_are_pictures_and_numbers_are_values(call: Callable[..., Result], tmp_path: Path) -> None:
    call("tiny", "--out", "here")
    for name in ("tiny-lines.svg", "tiny-bars.svg"):
        assert ElementTree.parse(tmp_path / "here" / name).getroot().tag.endswith("svg")
    (row,) = json.loads((tmp_path / "here" / "tiny.json").read_text())["page"]["sections"][0]["rows"]
    assert row["ours"] == {"value": 2.5, "seeds": [2.5, 2.5, 2.5], "text": "times"}
    page = (tmp_path / "here" / "tiny.html").read_text(encoding="utf-8")
    assert "polyrhythm reproduce tiny --out here" in page
    assert "src=" not in page.replace("Plotly", "").split("<script>")[0]


def test_an_unknown_paper_suggests_the_nearest_and_leaves_nothing(call: Callable[..., Result], tmp_path: Path) -> None:
    done = call("esink")
    assert done.exit_code == 2
    assert "unknown paper 'esink': did you mean esync?" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("data", ["/nope", __file__, ""])
def test_data_that_are_not_there_are_told_at_once_and_leave_nothing(
    call: Callable[..., Result], tmp_path: Path, data: str
) -> None:
    done = call("tiny", "--data", data)
    assert done.exit_code == 2
    assert done.stderr.startswith(f"polyrhythm: --data {data!r} is no folder; give the one with")
    assert not list(tmp_path.iterdir())


def test_a_folder_without_the_data_is_told_at_once(call: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = call("tiny", "--data", "empty")
    assert done.exit_code == 2
    assert done.stderr == "polyrhythm: data folder 'empty' has no *.parquet file with 'train' in its name\n"
    assert [path.name for path in tmp_path.iterdir()] == ["empty"]


def test_a_broken_file_of_the_data_is_told_at_once(call: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "train.parquet").write_bytes(b"PAR0")
    done = call("tiny", "--data", "broken")
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("polyrhythm: broken/train.parquet: not a parquet file that can be read")
    assert [path.name for path in tmp_path.iterdir()] == ["broken"]


def test_a_folder_that_cannot_be_made_is_named(call: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = call("tiny", "--out", "file")
    assert (done.exit_code, done.stderr) == (2, "polyrhythm: --out 'file/runs' cannot be made: Not a directory\n")


def test_ctrl_c_is_one_line(call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(lab: Lab) -> None:
        lab.tell(3, 9)
        lab.tell(1, 4)
        raise KeyboardInterrupt

    monkeypatch.setattr("tests.experiments.reproduce.conftest.page", stop)
    done = call("tiny")
    said = "polyrhythm: interrupted: 4 finished runs are in reproduction-tiny/runs; the same command goes on\n"
    assert (done.exit_code, done.stderr) == (130, said)


def test_sigterm_is_one_line(call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(lab: Lab) -> None:
        lab.tell(3, 9)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("tests.experiments.reproduce.conftest.page", stop)
    done = call("tiny")
    said = "polyrhythm: ended by SIGTERM: 3 finished runs are in reproduction-tiny/runs; the same command goes on\n"
    assert (done.exit_code, done.stderr) == (143, said)


def test_ctrl_c_before_it_has_begun_is_one_line(call: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("polyrhythm_experiments.cli.reproduce.trials_on", stop)
    done = call("tiny")
    assert (done.exit_code, done.stderr) == (130, "polyrhythm: interrupted\n")
