"""A real job with its page, asked as a browser asks."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

import msgspec
import pytest

from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import JobEvent
from tests.live.jobs import LIMIT_S, fetch, followed, watcher_of


def test_a_job_is_seen_switched_and_kept(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("report.html", "events.jsonl")}
    flags = ("--policy", "asp", "--ui", "--metrics-port", "0", "--report", files["report.html"])
    with followed(tmp_path, *flags, "--events", files["events.jsonl"]) as job:
        view = job.until(lambda v: v["loss"] is not None and len(v["workers"]) == 2 and v["figures"])
        assert view["figures"] == {"accuracy": 0.75}
        assert all(each["sent"] > 0 and each["received"] > 0 for each in view["workers"])
        assert json.loads(fetch(f"{job.page}complete?begun=ssp:")[1]) == ["ssp:s=3"]
        assert (view["policy"], view["planned"], view["ended"]) == ("asp", 2, "")
        root = job.page.rsplit("/", 2)[0]
        assert fetch(f"{root}/")[0] == 403
        assert fetch(f"{root}/wrong/state")[0] == 403
        assert fetch(f"{job.page}switch", {"policy": "bsp"}, Origin="http://elsewhere.example")[0] == 403
        assert "page.js" in fetch(job.page)[1]
        status, text = fetch(f"{job.page}switch", {"policy": "no-such"})
        assert (status, "unknown policy" in json.loads(text)["error"]) == (400, True)
        assert fetch(f"{job.page}switch", {"policy": "./mine.py:Mine"})[0] == 400
        assert fetch(f"{job.page}switch", {"policy": "this.that:Mine"})[0] == 400
        assert fetch(f"{job.page}state?after={'9' * 5000}")[0] == 200
        assert fetch(f"{job.page}remove", {"rank": 7})[0] == 400
        assert fetch(f"{job.page}drain", {"rank": -1})[0] == 400
        assert fetch(f"{job.page}drain", {"rank": 2**64})[0] == 400
        assert fetch(f"{job.page}remove", {"rank": "7"})[0] == 400
        assert fetch(f"{job.page}switch", {"policy": "ssp:2"}) == (200, '{"said":"switching to ssp:2"}')
        job.until(lambda v: v["policy"] == "ssp:2")
        metrics = fetch(job.metrics)[1]
        assert 'polyrhythm_policy_info{policy="ssp:2"} 1.0' in metrics
        assert re.search(r'^polyrhythm_step_seconds_total\{part="compute",rank="1"\} \d', metrics, re.MULTILINE)
        said = job.end()
        assert job.process.returncode == 0, said
        assert "polyrhythm coordinator: the page at 127.0.0.1 asks to switch to ssp:2" in said
    lines = Path(files["events.jsonl"]).read_bytes().splitlines()
    kinds = [msgspec.json.decode(line, type=JobEvent).kind for line in lines]
    assert {"start", "control", "switch", "end"} <= {*kinds}
    kept = Path(files["report.html"]).read_text(encoding="utf-8")
    assert '"ended":"finished"' in kept


def test_workers_are_drained_and_removed_and_the_job_ended_from_the_page(tmp_path: Path) -> None:
    with followed(tmp_path, "--policy", "asp", "--ui", workers=3) as job:
        job.until(lambda v: len(v["workers"]) == 3 and v["samples"] > 0)
        assert fetch(f"{job.page}drain", {"rank": 1}) == (200, '{"said":"rank 1 leaves when its step is complete"}')
        job.until(lambda v: len(v["workers"]) == 2)
        assert fetch(f"{job.page}remove", {"rank": 2}) == (200, '{"said":"rank 2 is removed"}')
        view = job.until(lambda v: len(v["workers"]) == 1)
        happened = [(event["kind"], event.get("rank")) for event in view["events"]]
        assert ("left", 1) in happened
        assert [rank for kind, rank in happened if kind == "death"] == [2]
        assert fetch(f"{job.page}end", {})[0] == 200
        said = job.process.communicate(timeout=120.0)[1]
        assert job.process.returncode == 1
        assert "was ended by the page at 127.0.0.1" in said
        assert "the page at 127.0.0.1 asks to drain rank 1" in said
        assert "rank 1 was asked to end, and has left" in said


def test_a_page_server_that_dies_or_stalls_is_nothing_to_the_job(tmp_path: Path) -> None:
    with followed(tmp_path, "--policy", "asp", "--ui") as job, ExitStack() as stack:
        begun = job.until(lambda v: v["samples"] > 0)
        host, port = urlsplit(job.page).hostname, urlsplit(job.page).port
        crowd = [stack.enter_context(socket.create_connection((host, port))) for _ in range(200)]
        for sock in crowd:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")  # and not the rest
        assert "HTTP/1.1 503" in asked_through(crowd[-1])
        assert steer.status(steer.at(job.name)).samples > begun["samples"]
        os.kill(watcher_of(job.process.pid), signal.SIGKILL)
        said = job.end()
        assert job.process.returncode == 0, said


def asked_through(sock: socket.socket) -> str:
    """The answer to the request that is begun on this connection."""
    sock.sendall(b"\r\n")
    return sock.recv(200).decode()


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (("--ui", "--ui-port", "{taken}"), "--ui-port {taken} on 127.0.0.1 cannot be used: Address already in use"),
        (("--ui", "--ui-host", "0.0.0.0"), "--ui-host 0.0.0.0 can be reached from other hosts; set POLYRHYTHM_TOKEN"),
        (("--metrics-port", "70000"), "--metrics-port must be from 0 to 65535 but got 70000"),
    ],
)
def test_what_cannot_be_is_one_line(flags: tuple[str, ...], line: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        command = [sys.executable, "-m", "polyrhythm", "run", *(flag.format(taken=port) for flag in flags), __file__]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=LIMIT_S)
    assert line.format(taken=port) in done.stderr
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


TRAINS = """
import os, sys, torch
for _ in range(int(sys.argv[1])):
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(4):
        optimizer.zero_grad()
        model(torch.randn(8, 4)).square().mean().backward()
        optimizer.step()
        if sys.argv[2:] and step:
            os._exit(9)
"""
"""So many trainings, each through before a process that follows the job has been imported."""


@pytest.mark.parametrize(
    ("arguments", "kinds", "ended"),
    [
        (("1",), ["start", "end"], "finished"),
        (("2",), ["start", "start", "end"], "finished"),
        (("1", "and dies"), ["start", "death", "end"], "all workers have died"),
    ],
)
def test_a_job_of_milliseconds_is_followed_to_its_end(
    arguments: tuple[str, ...], kinds: list[str], ended: str, tmp_path: Path
) -> None:
    events, script = tmp_path / "events.jsonl", tmp_path / "train.py"
    script.write_text(TRAINS, encoding="utf-8")
    flags = ("--policy", "asp", "--max-coordinator-restarts", "1", "--events", str(events))
    command = [sys.executable, "-m", "polyrhythm", "run", "--nproc-per-node", "1", *flags, str(script), *arguments]
    subprocess.run(command, capture_output=True, check=False, timeout=LIMIT_S)
    happened = [msgspec.json.decode(line, type=JobEvent) for line in events.read_bytes().splitlines()]
    assert [event.kind for event in happened] == kinds
    assert happened[-1].text == ended
