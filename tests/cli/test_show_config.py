"""``polyrhythm run --show-config``: all settings with their sources, and nothing is started."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from polyrhythm.cli.app import app
from polyrhythm.cli.pilot import resolved
from polyrhythm.runtime.launch.torchrun import read_command
from polyrhythm.runtime.wire.job_config import INTERNAL, TYPES


def shown(*words: str, status: int = 0) -> list[str]:
    outcome = CliRunner().invoke(app, ["run", *words])
    assert outcome.exit_code == status, outcome.output
    return [" ".join(line.split()) for line in outcome.output.splitlines()]


@pytest.fixture
def job_file(tmp_path: Path) -> str:
    path = tmp_path / "job.toml"
    path.write_text("nproc-per-node = 2\nshards = 2\n[policy]\nname = 'ssp'\ns = 3\n", encoding="utf-8")
    return str(path)


def test_every_setting_is_shown_with_its_source(job_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYRHYTHM_TOKEN", "hunter2")
    monkeypatch.setenv("POLYRHYTHM_EPOCHS", "7")
    monkeypatch.setenv("POLYRHYTHM_POLICY", "asp")
    lines = shown("--config", job_file, "--shards", "3", "--show-config", "none.py", "--show-config")
    assert {line.partition(" ")[0].replace("-", "_") for line in lines} >= set(TYPES) - INTERNAL
    for line in (
        "setting value source",
        "compress none default",
        "job made at the start default",
        "epochs 7 POLYRHYTHM_EPOCHS",
        f"policy ssp:3 {job_file}",
        "shards 3 --shards",
        "token set, not shown POLYRHYTHM_TOKEN",
        "workers 2 nnodes and nproc-per-node",
        "the script's session may set, as nobody else has: compress, on_divergence, checkpoint, every",
        f"shards 3 of --shards holds; 2 of {job_file} is overruled",
    ):
        assert line in lines
    assert "hunter2" not in " ".join(lines)


def test_no_script_is_needed_and_a_searched_policy_is_shown_as_given() -> None:
    assert "policy sync-switch --policy" in shown("--policy", "sync-switch", "--search", "--show-config")


@pytest.mark.parametrize("flag", ["--sho", "--show", "--show_config", "--show-conf"])
def test_it_may_be_cut_short_and_starts_nothing(flag: str) -> None:
    for words in ([flag, "a.py"], [flag]):
        assert "policy asp --policy" in shown("--policy", "asp", *words)


def test_a_job_file_without_a_name_is_refused() -> None:
    """As of a variable of a shell that is not set: the job would have none of its settings."""
    (line,) = shown("--config=", "--show-config", status=2)
    assert line == "polyrhythm: --config has no value; give one or leave it out"


def test_the_terms_of_a_search_are_shown_where_there_is_one(job_file: str) -> None:
    Path(job_file).write_text("policy = 'sync-switch'\nsettings = 2\ndata = ['a', 'b']\n", encoding="utf-8")
    family, words = ["--job-family", "digits"], ["--config", job_file, "--show-config"]
    lines = shown(*family, *words)
    there = f"settings 2 {job_file}", f"data a, b {job_file}", "job-family digits --job-family", "runs 3 default"
    assert {*there, "search false default"} <= {*lines}
    lines = shown(*words, "--policy", "asp")
    assert not any(line.startswith("settings ") for line in lines), "without effect"
    assert lines[-2:] == [
        f"the policy is not sync-switch, so {name} in {job_file} has no effect" for name in ("settings", "data")
    ]
    assert shown(*family, *words, "--policy", "asp", status=2) == [
        "polyrhythm: --job-family goes with --policy sync-switch, and the policy is another one"
    ]


def test_the_environment_may_name_the_terms_of_a_search_too(job_file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It named them for nothing."""
    given = {"SEARCH": "true", "RUNS": "2", "TARGET": "0.5", "DATA": "a:b", "WALK": "", "SETTINGS": "4"}
    for name, value in given.items():
        monkeypatch.setenv(f"POLYRHYTHM_{name}", value)
    lines = shown("--policy", "sync-switch", "--settings", "3", "--show-config")
    for line in (
        "search true POLYRHYTHM_SEARCH",
        "runs 2 POLYRHYTHM_RUNS",
        "target 0.5 POLYRHYTHM_TARGET",
        "data a, b POLYRHYTHM_DATA",
        "walk bisect default",
        "settings 3 --settings",
        "settings 3 of --settings holds; 4 of POLYRHYTHM_SETTINGS is overruled",
    ):
        assert line in lines


@pytest.mark.parametrize("policy", ["sync-switch", "elastic:policy=(sync-switch)"])
def test_a_term_that_cannot_be_read_ends_a_search(policy: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "a.py"
    script.write_text("", encoding="utf-8")
    monkeypatch.setenv("POLYRHYTHM_RUNS", "some")
    (line,) = shown("--policy", policy, "--show-config", status=2)
    assert line == "polyrhythm: POLYRHYTHM_RUNS must be a whole number but got 'some'"
    assert shown("--policy", policy, str(script), status=2) == [line]
    assert "runs 2 --runs" in shown("--policy", policy, "--runs", "2", "--show-config"), "and then it does nothing"


@pytest.mark.parametrize("words", [(), ("--config", "job.toml")])
def test_a_term_that_cannot_be_read_ends_no_run_without_a_search(
    words: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name as common as this may be set for all jobs of a site, or for something else."""
    monkeypatch.chdir(tmp_path)
    Path("job.toml").write_text("epochs = 2\n", encoding="utf-8")
    Path("a.py").write_text("", encoding="utf-8")
    monkeypatch.setenv("POLYRHYTHM_RUNS", "some")
    line = "the policy is not sync-switch, so POLYRHYTHM_RUNS has no effect"
    assert shown(*words, "--show-config")[-1] == line
    assert resolved([*words, "a.py"]) == [*words, "a.py"]
    assert read_command([*words, "a.py"]).overruled == (line,)


def test_two_job_files_are_refused(job_file: str) -> None:
    """The last one held, and nobody said so."""
    assert shown("--config", job_file, "--config=none.toml", "--show-config", status=2) == [
        f"polyrhythm: --config is given twice, as {job_file} and as none.toml; give one"
    ]


def test_what_is_wrong_is_one_line(job_file: str) -> None:
    assert shown("--config", job_file, "--show-config", "--shards", "0", status=2) == [
        "polyrhythm: --shards must be at least 1 but got 0"
    ]
    Path(job_file).write_text("polcy = 'asp'\n", encoding="utf-8")
    (line,) = shown("--config", job_file, "a.py", status=2)
    assert "unknown key 'polcy': did you mean policy?" in line
