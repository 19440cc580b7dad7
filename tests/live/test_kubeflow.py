"""Kubeflow's TrainJob is told how far the job is."""

import json
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.live import kubeflow
from polyrhythm.live.kubeflow import TrainJobStatus, trainer_status
from polyrhythm.live.model import view_of
from polyrhythm.runtime.launch.watch import TRAINJOB_URL, with_defaults
from polyrhythm.runtime.wire.job_config import JobConfig
from tests.live.statuses import status, worker

HALF = view_of(status(10.0, 1000, epochs=2, loss=0.25, figures={"accuracy": 0.9}, workers=(worker(0, 1000),)))


class Controller(HTTPServer):
    """Keeps what it is sent."""

    def __init__(self, answer: int = 200) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answer, self.location = answer, ""
        self.messages: list[tuple[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Controller

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.messages.append((self.headers["Authorization"], body))
        self.send_response(self.server.answer)
        if self.server.location:
            self.send_header("Location", self.server.location)
        self.end_headers()

    def do_GET(self) -> None:
        self.server.messages.append((self.headers["Authorization"], None))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def controller() -> Iterator[Controller]:
    server = Controller()
    yield server
    server.shutdown()
    server.server_close()


def variables(controller: Controller, tmp_path: Path) -> dict[str, str]:
    token = tmp_path / "token"
    token.write_text("secret\n")
    return {TRAINJOB_URL: f"http://127.0.0.1:{controller.server_port}/status", kubeflow.TOKEN: str(token)}


def test_the_status_is_what_the_proposal_wants() -> None:
    made = trainer_status(HALF, 0.0)
    assert made == {
        "progressPercentage": 50,
        "estimatedRemainingSeconds": 10,
        "metrics": [
            {"name": "loss", "value": "0.25"},
            {"name": "accuracy", "value": "0.9"},
            {"name": "samples_per_s", "value": "100"},
            {"name": "currentEpoch", "value": "1"},
            {"name": "workers", "value": "1"},
            {"name": "policy", "value": "asp"},
            {"name": "totalEpochs", "value": "2"},
        ],
        "lastUpdatedTime": "1970-01-01T00:00:00Z",
    }


def test_what_nobody_knows_is_left_out_and_the_end_is_all() -> None:
    assert {"progressPercentage", "estimatedRemainingSeconds"}.isdisjoint(trainer_status(view_of(status()), 0.0))
    last = trainer_status(view_of(status(ended="finished")), 0.0)
    assert (last["progressPercentage"], last["estimatedRemainingSeconds"]) == (100, 0)
    assert "progressPercentage" not in trainer_status(view_of(status(ended="a parameter server is gone")), 0.0)


def test_the_last_state_is_sent_with_the_token_of_the_pod(controller: Controller, tmp_path: Path) -> None:
    sink = TrainJobStatus(variables(controller, tmp_path))
    sink.see(status(), HALF, ())
    sink.close()
    ((authorization, body),) = controller.messages
    assert authorization == "Bearer secret"
    assert body["trainerStatus"]["progressPercentage"] == 50


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({kubeflow.TOKEN: "/nowhere/token"}, "No such file or directory"),
        ({TRAINJOB_URL: "http://trainer.example/status"}, "it is not https, and nothing is sent"),
        ({TRAINJOB_URL: "https://127.0.0.1:1/status"}, "Connection refused"),
    ],
)
def test_what_cannot_be_sent_is_one_line(
    change: dict[str, str], said: str, controller: Controller, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    sink = TrainJobStatus(variables(controller, tmp_path) | change)
    sink.see(status(), HALF, ())
    sink.close()
    err = capfd.readouterr().err
    assert (err.count("\n"), said in err) == (1, True)
    assert controller.messages == []


def sent(environment: dict[str, str]) -> None:
    sink = TrainJobStatus(environment)
    sink.see(status(), HALF, ())
    sink.close()


@pytest.mark.parametrize("answer", [301, 302, 303, 307, 308])
def test_the_token_follows_no_redirect(
    answer: int, controller: Controller, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    elsewhere = Controller()
    controller.answer, controller.location = answer, f"http://127.0.0.1:{elsewhere.server_port}/taken"
    sent(variables(controller, tmp_path))
    elsewhere.shutdown()
    elsewhere.server_close()
    assert (len(controller.messages), elsewhere.messages) == (1, [])
    err = capfd.readouterr().err
    assert (err.count("\n"), f"HTTP Error {answer}" in err) == (1, True)


def test_the_token_is_given_to_no_proxy_in_the_clear(
    controller: Controller, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy = Controller()
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.server_port}")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    sent(variables(controller, tmp_path))
    proxy.shutdown()
    proxy.server_close()
    assert (len(controller.messages), proxy.messages) == (1, [])


@pytest.mark.parametrize("answer", [b"what\r\n\r\n", b"HTTP/1.1 abc\r\n\r\n", b""])
def test_a_server_that_speaks_no_http_is_one_line(
    answer: bytes, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        answering = threading.Thread(target=answer_with, args=(listening, answer))
        answering.start()
        token = tmp_path / "token"
        token.write_text("secret\n")
        sent({TRAINJOB_URL: f"http://127.0.0.1:{listening.getsockname()[1]}/", kubeflow.TOKEN: str(token)})
        answering.join()
    err = capfd.readouterr().err
    assert (err.count("\n"), "TrainJob status at" in err) == (1, True)


def answer_with(listening: socket.socket, answer: bytes) -> None:
    connection, _ = listening.accept()
    with connection:
        while b"}}" not in connection.recv(1 << 16):
            pass
        connection.sendall(answer)


def test_a_token_that_is_none_is_named_by_its_file(
    controller: Controller, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    environment = variables(controller, tmp_path)
    (tmp_path / "token").write_text("secret\nsecond")
    sent(environment)
    err = capfd.readouterr().err
    assert (err.count("\n"), "is no token" in err, "secret" in err) == (1, True, False)


def test_a_job_in_a_trainjob_is_followed() -> None:
    assert with_defaults(JobConfig(), {TRAINJOB_URL: "https://controller/status"}, False).watched
    assert not with_defaults(JobConfig(), {}, False).watched


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "KUBERNETES_SERVICE_HOST", "CI"])
def test_there_is_a_page_on_a_terminal_but_not_where_nobody_sits(variable: str) -> None:
    assert with_defaults(JobConfig(), {}, True).ui
    assert not with_defaults(JobConfig(), {}, False).ui
    assert not with_defaults(JobConfig(), {variable: "1"}, True).ui
    assert with_defaults(JobConfig(ui=True, given={"ui": "--ui"}), {variable: "1"}, False).ui
    assert not with_defaults(JobConfig(ui=False, given={"ui": "--no-ui"}), {}, True).ui
    assert not with_defaults(JobConfig(ui_host="0.0.0.0"), {}, True).ui
