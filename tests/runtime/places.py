"""``polyrhythm run`` as a user starts it: scripts of a few lines, each in a folder of its own."""

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

MARK = "POLYRHYTHM_TEST_MARK"
LIMIT_S = 120.0

HEAD = """
import os, signal, subprocess, sys
import torch
import polyrhythm

rank = int(os.environ["RANK"])
model = torch.nn.Linear(3, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
data = torch.utils.data.TensorDataset(torch.ones(40, 3), torch.ones(40, 1))

def step(x, y):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()

def call(*words):
    done = subprocess.run([sys.executable, "-m", "polyrhythm", *words], capture_output=True, text=True)
    return done.returncode, (done.stdout + done.stderr).strip().splitlines()[-1]
"""


class Place:
    """A folder to run in, and an environment that all processes of a run inherit."""

    def __init__(self, folder: Path, temporary: Path) -> None:
        self.folder, self.temporary, self.mark = folder, temporary, uuid.uuid4().hex
        (folder / "work").mkdir()

    def run(self, script: str, *flags: str, arguments: Sequence[str] = ()) -> subprocess.CompletedProcess[str]:
        """A script, after `HEAD`, to its end."""
        with self.start(script, *flags, arguments=arguments) as process:
            try:
                out, err = process.communicate(timeout=LIMIT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def start(self, script: str, *flags: str, arguments: Sequence[str] = ()) -> "subprocess.Popen[str]":
        """A script, after `HEAD`, that somebody else waits for."""
        path = self.folder / "script.py"
        path.write_text(HEAD + script, encoding="utf-8")
        ours = {MARK: self.mark, "TMPDIR": str(self.temporary), "OMP_NUM_THREADS": "1"}
        return subprocess.Popen(
            [sys.executable, "-m", "polyrhythm", "run", *flags, str(path), *arguments],
            cwd=self.folder / "work",
            env={**os.environ, **ours},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def files(self) -> list[str]:
        """What is left, but for torch's own cache, and sockets of its loaders, which leave them if they are killed."""
        left = [str(path) for folder in (self.folder / "work", self.temporary) for path in folder.rglob("*")]
        return [path for path in left if "torchinductor" not in path and "pymp-" not in path]

    def processes(self) -> Iterator[int]:
        """Those that live and have our mark in their environment."""
        for path in Path("/proc").glob("[0-9]*/environ"):
            try:
                if self.mark.encode() in path.read_bytes():
                    yield int(path.parent.name)
            except OSError:  # ended meanwhile, or another user's
                continue


@contextmanager
def place_in(tmp_path: Path) -> Iterator[Place]:
    """A place with a second folder for temporary files."""
    # Not below tmp_path: the sockets of torch's loaders have names there, which must not be long.
    with TemporaryDirectory() as temporary:
        yield Place(tmp_path, Path(temporary))
