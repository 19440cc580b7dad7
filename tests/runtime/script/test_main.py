"""``python -m polyrhythm.runtime.script``: what a worker is before its script runs, and after it."""

import os
import subprocess
import sys
from pathlib import Path

from tests.runtime.places import LIMIT_S, Place


def test_a_line_is_one_write_and_so_is_not_mixed_with_anothers(place: Place) -> None:
    """Two ranks that printed at the same time gave `trainedtrained 1 ` once."""
    counted = """
written = []
sys.stdout.flush()
reader, writer = os.pipe()
os.dup2(writer, 1)
for rank_ in range(2):
    print("trained", rank_, end=", ")
    print("by", rank)
    written.append(os.read(reader, 100).decode())
print("no end", end="")
sys.stdout.flush()
written.append(os.read(reader, 100).decode())
with open(f"written{rank}", "w") as file:
    file.write(repr(written))
"""
    done = place.run(counted, "--nproc-per-node", "2", "--policy", "asp")
    assert done.returncode == 0, done.stderr
    for rank in range(2):
        written = (place.folder / "work" / f"written{rank}").read_text()
        assert written == repr([f"trained 0, by {rank}\n", f"trained 1, by {rank}\n", "no end"])


WRITES_LATE = """
import sys, threading
import torch.distributed as dist

def write():
    threading.main_thread().join()  # until the script is over
    dist.barrier()
    print("written")

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
threading.Thread(target=write).start()
"""

IDLE = """
from concurrent.futures import ThreadPoolExecutor
from polyrhythm.runtime.script.__main__ import leave

executor = ThreadPoolExecutor(1)
executor.submit(print, "done").result()
leave(3)
"""


def python(*arguments: str) -> "subprocess.CompletedProcess[str]":
    """What a worker prints without a job."""
    environment = {**os.environ, "RANK": "0", "WORLD_SIZE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
    )


def test_a_scripts_threads_have_its_group_until_they_end(tmp_path: Path) -> None:
    """As one that writes a last checkpoint: the group was gone before."""
    (tmp_path / "script.py").write_text(WRITES_LATE)
    done = python("-m", "polyrhythm.runtime.script", str(tmp_path / "script.py"), str(tmp_path / "store"))
    assert (done.returncode, done.stdout) == (0, "written\n"), done.stderr


LEAVES_AT_EXIT = """
import atexit, sys
import torch.distributed as dist

dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}", rank=0, world_size=1)
atexit.register(dist.destroy_process_group)
atexit.register(lambda: print(dist.get_world_size()))
"""


def test_a_script_has_its_group_at_exit_too(tmp_path: Path) -> None:
    """As under torchrun: the group was gone before, and what is registered ended in a traceback."""
    (tmp_path / "script.py").write_text(LEAVES_AT_EXIT)
    done = python("-m", "polyrhythm.runtime.script", str(tmp_path / "script.py"), str(tmp_path / "store"))
    assert (done.returncode, done.stdout) == (0, "1\n"), done.stderr
    assert "Traceback" not in done.stderr


def test_who_leaves_torch_as_it_is_does_not_wait_for_executors_that_wait_for_work() -> None:
    done = python("-c", IDLE)
    assert (done.returncode, done.stdout) == (3, "done\n"), done.stderr
