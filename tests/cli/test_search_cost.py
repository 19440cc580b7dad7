import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

RUNS = Path(__file__).parents[1] / "search" / "runs.csv"
Call = Callable[..., Result]


def test_table_json_and_figure(call: Call, tmp_path: Path) -> None:
    figures, picture = tmp_path / "cost.json", tmp_path / "cost.svg"
    done = call("search-cost", RUNS, "--json", figures, "--figure", picture)
    assert done.exit_code == 0
    assert "small: switch at 50 %" in done.stdout
    assert "25 %     2 runs, accuracy 0.4600, 42.0 s (0.420 of bsp): fails" in done.stdout
    assert "setup 'stragglers' has no runs with bsp_percent = 100" in done.stderr
    (setup,) = json.loads(figures.read_text(encoding="utf-8"))["setups"]
    assert (setup["name"], setup["answer_percent"], setup["bsp_runs"]) == ("small", 50.0, 3)
    assert len(setup["rows"]) == 28
    assert {row["replacement"] for row in setup["rows"]} == {False, True}
    assert "small, runs drawn without replacement" in picture.read_text(encoding="utf-8")


def rows(call: Call, folder: Path, *options: str) -> list[dict[str, Any]]:
    path = folder / "cost.json"
    done = call("search-cost", RUNS, "--json", path, *options)
    assert done.exit_code == 0, done.stderr
    found: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8"))["setups"][0]["rows"]
    return found


def test_options_reach_the_analysis(call: Call, tmp_path: Path) -> None:
    assert len(rows(call, tmp_path, "--runs", "2", "--draw", "with")) == 5
    assert rows(call, tmp_path, "--candidates", "25", "--beta", "0.5")[0]["cost"] == pytest.approx(5 + 5 * 0.42)
    kept = rows(call, tmp_path, "--exclude", "", "--candidates", "50")[0]
    assert kept["cost"] == pytest.approx(5 + 5 * 2.4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--setup", "big"], "--setup 'big' is not in the log; it has small, stragglers"),
        (["--setup", "stragglers"], "setup 'stragglers' has no runs with bsp_percent = 100"),
        (["--candidates", "50,x"], "--candidates must be percents from 0 to below 100 but got '50,x'"),
        (["--candidates", "33"], "setup 'small' has no runs of a candidate"),
        (["--exclude", "("], "--exclude '(' is no regular expression"),
    ],
)
def test_mistakes_are_one_line(call: Call, options: list[str], message: str) -> None:
    done = call("search-cost", RUNS, *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert message in done.stderr
    assert len(done.stderr.splitlines()) == 1
