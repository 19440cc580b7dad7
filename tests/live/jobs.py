"""Real jobs under ``polyrhythm run`` with something that follows them."""

import json
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

LIMIT_S = 120.0

SCRIPT = """
import os, pathlib
import torch
import polyrhythm

over = pathlib.Path(__file__).with_name("over")
torch.manual_seed(0)
model = torch.nn.Linear(6, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(400, 6)
data = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
with polyrhythm.session(model, optimizer) as session:
    while not over.exists():
        for a, b in session.loader(data, batch_size=2):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(a), b).backward()
            optimizer.step()
        session.log(accuracy=0.75)
"""
"""Trains until there is a file named `over` beside it, which is looked for at the end of an epoch by each worker."""


class Followed(NamedTuple):
    """A running job.

    Args:
        process: the launcher.
        folder: of the script.
        name: of the job.
        page: address of the page; nothing if there is none.
        metrics: address of the metrics.
    """

    process: "subprocess.Popen[str]"
    folder: Path
    name: str
    page: str
    metrics: str

    def end(self) -> str:
        """Let the script end; what the launcher has said on stderr since its first lines."""
        (self.folder / "over").touch()
        return self.process.communicate(timeout=LIMIT_S)[1]

    def state(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(fetch(f"{self.page}state")[1])
        return found

    def until(self, holds: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        """Look until the view is like this; the view."""
        deadline = time.monotonic() + LIMIT_S
        while time.monotonic() < deadline:
            view = self.state()["view"]
            if view is not None and holds(view):
                found: dict[str, Any] = view
                return found
            time.sleep(0.1)
        raise AssertionError(f"the job is not like that within {LIMIT_S:g} s: {view}")


@contextmanager
def followed(folder: Path, *flags: str, workers: int = 2) -> Iterator[Followed]:
    """A job with these flags of ``polyrhythm run``."""
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    name = f"followed-{uuid.uuid4().hex}"
    ours = ("--job", name, "--nproc-per-node", str(workers))
    command = [sys.executable, "-m", "polyrhythm", "run", *ours, *flags, str(script)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        said = ""
        wanted = ("--ui" in flags) + ("--metrics-port" in flags)
        while said.count("http://") < wanted:
            line = process.stderr.readline()
            assert line, said
            said += line
        page = re.search(r"http://\S+/$", said, re.MULTILINE)
        metrics = re.search(r"http://\S+/metrics$", said, re.MULTILINE)
        yield Followed(process, folder, name, page[0] if page else "", metrics[0] if metrics else "")
    finally:
        process.terminate()
        print(process.communicate()[1], file=sys.stderr)  # shown where a test fails


def fetch(url: str, body: object = None, **headers: str) -> tuple[int, str]:
    """Status and text of an answer; a body makes it a POST."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, headers)
    if body is not None:
        request.add_header("Content-Type", "application/json")
    try:
        with urllib.request.urlopen(request, timeout=30.0) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def watcher_of(launcher: int) -> int:
    """The process that follows the job."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        words = path.read_bytes().split(b"\0")
        if b"polyrhythm.live" in words and f"PPid:\t{launcher}\n" in (path.parent / "status").read_text():
            return int(path.parent.name)
    raise AssertionError("nobody follows the job")
