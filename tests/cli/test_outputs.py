import errno
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from polyrhythm.cli import app as commands
from polyrhythm.cli import main
from polyrhythm.cli.outputs import Outputs
from polyrhythm.errors import PolyrhythmError


def test_missing_folders_are_made_and_no_file_is_left(tmp_path: Path) -> None:
    Outputs(json=tmp_path / "a" / "out.json", trace=tmp_path / "b" / "traces").prepare()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "b", "traces"]


def test_what_is_in_a_file_stays_until_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "out.json"
    path.write_text("old", encoding="utf-8")
    Outputs(json=path).prepare()
    assert path.read_text(encoding="utf-8") == "old"


@pytest.mark.parametrize("option", ["json", "report", "timeline", "perfetto"])
def test_a_folder_is_no_file(tmp_path: Path, option: str) -> None:
    files: dict[str, Any] = {option: tmp_path}
    with pytest.raises(PolyrhythmError, match=rf"--{option} '.*' cannot be written: Is a directory"):
        Outputs(**files).prepare()


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.touch()
    with pytest.raises(PolyrhythmError, match=r"--trace '.*file' cannot be made: File exists"):
        Outputs(trace=path).prepare()
    with pytest.raises(PolyrhythmError, match=r"--json '.*' cannot be written: Not a directory|File exists"):
        Outputs(json=path / "out.json").prepare()


FULL = Path("/dev/full")
RUNS = Path(__file__).parents[1] / "search" / "runs.csv"


def status_without_readers(monkeypatch: pytest.MonkeyPatch, *words: object) -> object:
    """Exit status of a command whose standard output is on a full disk."""
    monkeypatch.setattr(sys, "argv", ["polyrhythm", *map(str, words)])
    with FULL.open("w", encoding="utf-8") as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as left:
            main()
    return left.value.code


@pytest.mark.parametrize("words", [("policies",), ("scenarios",), ("compare", "--help"), ("doctor", "--help")])
def test_a_full_standard_output_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], words: tuple[str, ...]
) -> None:
    assert status_without_readers(monkeypatch, *words) == 1
    assert capsys.readouterr().err == "polyrhythm: standard output cannot be written: No space left on device\n"


def test_files_are_written_also_where_nobody_reads_the_table(
    timing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    json, cost = tmp_path / "o.json", tmp_path / "cost.json"
    assert status_without_readers(monkeypatch, "simulate", timing, "--json", json) == 1
    assert status_without_readers(monkeypatch, "search-cost", RUNS, "--json", cost) == 1
    assert json.stat().st_size
    assert cost.stat().st_size
    assert "Traceback" not in capsys.readouterr().err


def test_a_file_that_cannot_be_written_keeps_neither_the_others_nor_the_table_from_it(
    call: Callable[..., Result], timing: str, tmp_path: Path
) -> None:
    report = tmp_path / "o.html"
    done = call("simulate", timing, "--json", FULL, "--report", report)
    assert (done.exit_code, done.stderr) == (
        1,
        "polyrhythm: '/dev/full' cannot be written: No space left on device\n",
    )
    assert "bsp" in done.stdout
    assert report.exists()


@pytest.mark.parametrize("option", ["--json", "--figure"])
def test_a_file_of_figures_that_cannot_be_written_is_one_line(call: Callable[..., Result], option: str) -> None:
    done = call("search-cost", RUNS, option, FULL, "--setup", "small")
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "'/dev/full' cannot be written" in done.stderr


@pytest.mark.parametrize(("number", "status"), [(errno.ENOSPC, 1), (errno.ENOENT, None)])
def test_only_a_full_disk_is_told_by_itself(monkeypatch: pytest.MonkeyPatch, number: int, status: int | None) -> None:
    def fail(**_: object) -> None:
        raise OSError(number, "so it is")

    monkeypatch.setattr(commands, "app", fail)
    with pytest.raises(OSError if status is None else SystemExit) as left:
        main()
    assert getattr(left.value, "code", None) == status


@pytest.mark.parametrize(
    ("words", "one", "other"),
    [
        (("simulate", "{timing}", "--json", "{folder}/a", "--report", "{folder}/x/../a"), "--json", "--report"),
        (("trace", "export", "{timing}", "--perfetto", "{timing}"), "TRACE", "--perfetto"),
        (("search-cost", "{timing}", "--json", "{timing}"), "RUNS.csv", "--json"),
        (("search-cost", RUNS, "--json", "{folder}/a", "--figure", "{folder}/a"), "--json", "--figure"),
        (("calibrate", "{timing}", "--out", "{timing}"), "SCENARIO", "--out"),
        (("simulate", "{timing}", "--json", "{timing}"), "SCENARIO", "--json"),
        (("doctor", "{timing}", "--report", "{timing}"), "TRACES", "--report"),
    ],
)
def test_no_file_is_written_twice_or_over_what_is_read(
    call: Callable[..., Result], timing: str, tmp_path: Path, words: tuple[object, ...], one: str, other: str
) -> None:
    before = Path(timing).read_bytes()
    done = call(*(str(word).format(timing=timing, folder=tmp_path) for word in words))
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith(f"polyrhythm: {one} and {other} are the same file ")
    assert Path(timing).read_bytes() == before


@pytest.mark.parametrize(
    ("words", "folder"),
    [
        (("simulate", "{timing}", "--trace", "{folder}", "--perfetto", "{folder}/bsp-seed0.jsonl"), "--trace"),
        (("compare", "{timing}", "--trace", "{folder}", "--json", "{folder}/x/../bsp-seed0.jsonl"), "--trace"),
        (("calibrate", "{timing}", "--from", "{folder}", "--json", "{folder}/bsp-seed0.jsonl"), "--from"),
        (("doctor", "{folder}", "--report", "{folder}/bsp-seed0.jsonl"), "TRACES"),
        (("doctor", "{folder}", "--report", "{folder}/rank0.json"), "TRACES"),
    ],
)
def test_no_trace_is_written_over(
    call: Callable[..., Result], timing: str, tmp_path: Path, words: tuple[str, ...], folder: str
) -> None:
    (tmp_path / "traces").mkdir()
    traces = [tmp_path / "traces" / name for name in ("bsp-seed0.jsonl", "rank0.json")]
    for trace in traces:
        trace.write_text("a trace", encoding="utf-8")
    done = call(*(word.format(timing=timing, folder=tmp_path / "traces") for word in words))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert f" would be among the traces of {folder}; end its name otherwise" in done.stderr
    assert [trace.read_text(encoding="utf-8") for trace in traces] == ["a trace", "a trace"]


def test_a_page_may_lie_beside_traces(call: Callable[..., Result], timing: str, tmp_path: Path) -> None:
    done = call("simulate", timing, "--trace", tmp_path / "t", "--json", tmp_path / "t" / "results.json")
    assert done.exit_code == 0
    assert (tmp_path / "t" / "results.json").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "{timing}", "--json", "{long}"),
        ("trace", "export", "{timing}", "--perfetto", "{long}"),
        ("search", "{timing}", "--store", "{long}"),
        ("calibrate", "{timing}", "--out", "{long}"),
        ("doctor", "{timing}", "--report", "{long}"),
        ("search-cost", RUNS, "--json", "{long}"),
        ("doctor", "{long}"),
    ],
)
def test_a_name_that_is_too_long_is_one_line(
    call: Callable[..., Result], timing: str, training: str, words: tuple[object, ...]
) -> None:
    scenario = training if words[0] in ("search", "calibrate") else timing
    done = call(*(str(word).format(timing=scenario, long="x" * 300) for word in words))
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "File name too long" in done.stderr


def test_nothing_may_go_nowhere_twice(call: Callable[..., Result], timing: str) -> None:
    assert call("simulate", timing, "--json", "/dev/null", "--report", "/dev/null").exit_code == 0


@pytest.mark.parametrize(
    "words", [("simulate", "uniform", "--timeline", "x.png"), ("search-cost", RUNS, "--figure", "x.jpg")]
)
def test_a_picture_is_named_after_what_it_is(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[object, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == f"polyrhythm: {words[2]} '{words[3]}' would be an SVG picture; end its name in .svg\n"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "words",
    [
        ("simulate", "uniform", "--trace", ""),
        ("simulate", "uniform", "--json", ""),
        ("simulate", "uniform", "--report", ""),
        ("calibrate", "uniform", "--from", ""),
        ("simulate", "uniform", "--timeline", ""),
        ("simulate", "uniform", "--perfetto", ""),
        *(("calibrate", "uniform", option, "") for option in ("--out", "--json", "--report")),
        *(("search", "uniform", option, "") for option in ("--store", "--json")),
        *(("search-cost", "x.csv", option, "") for option in ("--json", "--figure")),
        ("trace", "export", "x.jsonl", "--perfetto", ""),
        ("doctor", "--keep", "", "--", "torchrun"),
        ("learn", "x.json", "--log", ""),
        ("reproduce", "esync", "--out", ""),
    ],
)
def test_an_empty_path_is_not_the_current_folder(
    call: Callable[..., Result], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    done = call(*words)
    option = words[words.index("") - 1]
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Invalid value for '{option}': an empty path; give one, or leave it out" in done.stderr


def test_an_empty_argument_is_not_the_current_folder(call: Callable[..., Result]) -> None:
    for words in (("doctor", ""), ("learn", ""), ("search-cost", ""), ("trace", "export", "", "--perfetto", "x.json")):
        assert "an empty path; give one, or leave it out" in call(*words).stderr
