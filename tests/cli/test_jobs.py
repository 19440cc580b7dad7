"""``polyrhythm ctl`` where no job is asked."""

import json
from collections.abc import Callable

import pytest
from typer.testing import Result

from polyrhythm.runtime.launch import control_client

Call = Callable[..., Result]


@pytest.fixture(autouse=True)
def two_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "jobs_here", lambda: ["one", "two"])


def test_without_a_job_the_jobs_are_listed(call: Call) -> None:
    assert call("ctl").stdout == "one\ntwo\n"
    assert json.loads(call("ctl", "--json").stdout) == ["one", "two"]


def test_no_job_is_an_empty_list(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "jobs_here", list)
    assert call("ctl").stdout == "no job runs on this host\n"
    assert json.loads(call("ctl", "--json").stdout) == []


def test_the_jobs_of_another_host_cannot_be_listed(call: Call) -> None:
    done = call("ctl", "--at", "tcp:node0:29400")
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "polyrhythm: --at tcp:node0:29400 needs the id of the job there, as in ctl JOB --at ...\n"


@pytest.mark.parametrize("words", [("",), ("", "end"), ("", "switch", "asp"), ("", "--json")])
def test_a_job_without_a_name_is_refused(call: Call, words: tuple[str, ...]) -> None:
    done = call("ctl", *words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("polyrhythm: JOB must be")
    assert done.stderr.endswith("but got ''\n")


@pytest.mark.parametrize(
    "words", [("ctl", "twoo", "end"), ("ctl", "twoo"), ("top", "twoo"), ("doctor", "--job", "twoo")]
)
def test_a_job_that_does_not_run_is_answered_with_those_that_do(call: Call, words: tuple[str, ...]) -> None:
    done = call(*words)
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr == "polyrhythm: no job 'twoo' runs on this host: did you mean two? Known: one, two\n"


def test_where_no_job_runs_or_one_is_elsewhere_the_address_is_named(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "cannot connect to tcp:127.0.0.1:9" in call("ctl", "twoo", "--at", "tcp:127.0.0.1:9").stderr
    assert "cannot connect to unix:@polyrhythm-two: " in call("ctl", "two").stderr, "it may have ended just now"
    monkeypatch.setattr(control_client, "jobs_here", list)
    assert call("ctl", "twoo").stderr == (
        "polyrhythm: cannot connect to unix:@polyrhythm-twoo: Connection refused; is the job running?\n"
    )


def test_top_where_no_job_runs_is_one_line(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_client, "jobs_here", list)
    done = call("top", "nobody-there")
    line = "cannot connect to unix:@polyrhythm-nobody-there: Connection refused; is the job running?"
    assert (done.exit_code, done.stderr) == (2, f"polyrhythm: {line}\n")


@pytest.mark.parametrize("words", [("ctl", "one", "end"), ("top", "one"), ("doctor", "--job", "one")])
def test_an_empty_address_is_not_this_host(call: Call, words: tuple[str, ...]) -> None:
    done = call(*words, "--at", "")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Invalid value for '--at': an empty address; give one, or leave it out; see " in done.stderr
