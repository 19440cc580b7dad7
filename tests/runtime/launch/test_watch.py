"""What must hold before a process follows a job, and what is said of where it shows it."""

import importlib.util
import socket
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch.nodes import TOKEN
from polyrhythm.runtime.launch.watch import check_outputs, check_watch, start_watch, where
from polyrhythm.runtime.wire.job_config import JobConfig


def config(**settings: Any) -> JobConfig:
    return JobConfig(job="fruit", given={name: f"--{name.replace('_', '-')}" for name in settings}, **settings)


def test_nobody_follows_a_job_that_nobody_wants_to_see() -> None:
    assert not config().watched
    assert start_watch(config()) is None


@pytest.mark.parametrize(
    "settings", [{"ui": True}, {"metrics_port": 0}, {"report": "a"}, {"events": "a"}, {"tensorboard": "a"}], ids=str
)
def test_each_of_the_flags_wants_it(settings: dict[str, Any]) -> None:
    assert config(**settings).watched


def test_a_package_that_is_missing_is_named_with_its_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "uvicorn" else find(name))
    check_watch(config(report="page.html"))
    with pytest.raises(UsageError, match=r"^--ui needs uvicorn; install with: pip install 'polyrhythm\[ui\]'$"):
        check_watch(config(ui=True))
    with pytest.raises(UsageError, match=r"^--metrics-port needs uvicorn; install with"):
        check_watch(config(metrics_port=0))


@pytest.mark.parametrize("name", ["report", "events", "tensorboard", "trace", "checkpoint"])
def test_what_cannot_be_written_is_said_before_anything_starts(name: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_outputs(config(**{name: str(tmp_path / "new" / "one")}))
    with pytest.raises(UsageError, match=rf"^--{name} '.*/file/one' cannot be (written|made): "):
        check_outputs(config(**{name: str(tmp_path / "file" / "one")}))


@pytest.mark.parametrize("token", ["", "with/slash", "with space", "ä"])
def test_beyond_this_host_the_token_is_the_key(token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(
        UsageError, match=r"^--ui-host 0\.0\.0\.0 can be reached from other hosts; set POLYRHYTHM_TOKEN"
    ):
        check_watch(config(ui=True, ui_host="0.0.0.0"))
    monkeypatch.setenv(TOKEN, "c0ffee")
    check_watch(config(ui=True, ui_host="0.0.0.0"))


def test_a_token_is_not_shown() -> None:
    with socket.create_server(("127.0.0.1", 0)) as sock:
        port = sock.getsockname()[1]
        assert where(config(ui=True), "key", sock, None) == [f"page of job fruit: http://127.0.0.1:{port}/key/"]
        (line,) = where(config(ui=True, ui_host="0.0.0.0"), "c0ffee", sock, None)
        assert line == f"page of job fruit: http://0.0.0.0:{port}/$POLYRHYTHM_TOKEN/"
