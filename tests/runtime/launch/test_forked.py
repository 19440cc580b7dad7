"""Workers that are forked from one process are as those that were started each by itself."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.errors import UsageError
from polyrhythm.runtime.launch import forked
from polyrhythm.runtime.launch.forked import begin_fork, usual
from polyrhythm.runtime.launch.torchrun import read_command

TELLS = """
import atexit, gc, json, os, random, signal, sys
from pathlib import Path
import numpy, torch

def read(pid, what):
    try:
        return Path("/proc", pid, what).read_bytes()
    except OSError:  # ended meanwhile
        return b""

siblings = Path(f"/proc/{os.getppid()}/task/{os.getppid()}/children").read_text().split()
coordinators = [pid for pid in siblings if b"coordinator.process" in read(pid, "cmdline")]
atexit.register(lambda: os.write(1, b"at exit\\n"))
told = {
    "rank": os.environ["RANK"], "parent": os.getppid(), "arguments": sys.argv, "file": __file__, "name": __name__,
    "random": [random.random(), float(numpy.random.rand())], "seed": torch.initial_seed(),
    "order": hash("a word"),
    "threads": [torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]], "path": sys.path[0],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "forks": "POLYRHYTHM_FORKS" in os.environ,
    "garbage": [gc.isenabled(), gc.get_freeze_count() > len(sys.modules)],
    "coordinator_forked": [b"POLYRHYTHM_FORKS" in read(each, "environ") for each in coordinators],
}
os.write(1, json.dumps(told).encode() + b"\\n")
sys.exit(5 if told["rank"] == sys.argv[1] else 0)
"""


def run(folder: Path, *flags: str, workers: int = 3) -> tuple[int, list[dict[str, Any]], int]:
    """Exit status and pid of the launcher, and what the workers tell, by rank."""
    script = folder / "tells.py"
    script.write_text(TELLS, encoding="utf-8")
    flags = "run", "--no-ui", "--nproc-per-node", str(workers), *flags
    words = [sys.executable, "-m", "polyrhythm", *flags, str(script), "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        told, _ = process.communicate(timeout=120)
    lines = told.splitlines()
    assert lines.count("at exit") == workers
    found = [json.loads(line) for line in lines if line != "at exit"]
    return process.returncode, sorted(found, key=lambda each: each["rank"]), process.pid


@pytest.mark.parametrize("flags", [(), ("--start-method", "spawn")], ids=str)
def test_a_worker_is_a_process_of_its_own_whoever_has_started_it(flags: tuple[str, ...], tmp_path: Path) -> None:
    status, told, launcher = run(tmp_path, *flags)
    assert status == 1
    assert [each["rank"] for each in told] == ["0", "1", "2"]
    assert {each["parent"] for each in told} == {launcher}
    script = str(tmp_path / "tells.py")
    assert all(each["arguments"] == [script, "1"] and each["file"] == script for each in told)
    assert all((each["name"], each["path"]) == ("__main__", str(tmp_path)) for each in told)
    assert len({number for each in told for number in each["random"]}) == 2, "the same on all ranks"
    assert len({each["seed"] for each in told}) == len({each["order"] for each in told}) == 1
    assert all(each["threads"] == [1, os.environ.get("OMP_NUM_THREADS", "1")] for each in told)
    assert all(each["interrupt"] and not each["forks"] for each in told)
    assert all(each["garbage"] == [True, True] for each in told), "looked for, but not in what was imported before"
    assert all(each["coordinator_forked"] == [not flags] for each in told)


def test_a_worker_that_is_killed_is_told_of(tmp_path: Path) -> None:
    script = tmp_path / "dies.py"
    script.write_text("import os, signal\nif os.environ['RANK'] == '1':\n    os.kill(os.getpid(), signal.SIGKILL)\n")
    words = [sys.executable, "-m", "polyrhythm", "run", "--no-ui", "--nproc-per-node", "2", str(script)]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=120)
    assert "rank 1 was killed by SIGKILL" in done.stderr


def test_what_cannot_be_forked_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--start-method fork: a program that is no Python cannot be forked"):
        read_command(["--nproc-per-node", "2", "--start-method", "fork", "--no-python", "true"])


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        ("train.py", {}),
        ("--nproc-per-node 1 train.py", {}),
        ("--nproc-per-node 2 --no-python train", {}),
        ("--nproc_per_node=2 --start-method spawn train.py", {}),
        ("--nproc-per-node=2 --on ray train.py", {}),
        ("--nproc-per-node 2 --policy sync-switch train.py", {}),
        ("--nproc-per-node 2 train.py", {"RANK": "0"}),
        ("--nproc-per-node 2 train.py", {"SLURM_NTASKS": "2"}),
        ("--help", {}),
    ],
)
def test_nothing_is_begun_that_may_not_be_wanted(words: str, environment: dict[str, str]) -> None:
    assert begin_fork(words.split(), environment) is None


def test_where_the_kernel_gives_us_no_child_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forked, "adopt", lambda wanted: None)
    fork = forked.WorkerFork(["train.py"], os.environ)
    environment = {**os.environ}
    assert fork.start(["train.py"], environment) is None
    fork.close()
    assert fork.start(["train.py"], environment) is None
    assert fork.start_coordinator(0, [], []) is None


def test_a_worker_that_somebody_else_has_waited_for_has_ended() -> None:
    pid = os.posix_spawn(sys.executable, [sys.executable, "-c", ""], os.environ)
    os.waitpid(pid, 0)
    worker = forked.ForkedProcess(pid)
    worker.terminate()
    assert worker.wait(1.0) == 0


def test_no_word_comes_from_a_launcher_that_was_killed() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        theirs.sendall(b"12\n")
        ours.close()  # which has not read: the kernel resets what is left
        assert list(forked.words(theirs)) == []


def test_who_was_forked_for_a_launcher_that_is_gone_ends() -> None:
    ours, theirs = socket.socketpair()
    ours.close()
    if not (pid := os.fork()):
        forked.answer(theirs, 7)
        os._exit(0)
    theirs.close()
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_an_interrupt_while_all_is_imported_ends_nothing() -> None:
    """What workers are forked from leaves it to the launcher, and prints no traceback."""
    told, script = forked.WorkerFork(["x.py"], os.environ), ["-c", "import sys; sys.exit(7)"]
    told._process.send_signal(signal.SIGINT)
    worker = told.start(script, {**os.environ})
    assert worker is not None, "it still forks"
    worker.wait(60.0)
    told.close()


@pytest.mark.parametrize("interrupts", [True, False])
def test_a_worker_is_interrupted_if_its_launcher_was_when_it_began(interrupts: bool) -> None:
    before = signal.signal(signal.SIGINT, signal.default_int_handler if interrupts else signal.SIG_IGN)
    try:
        fork = forked.WorkerFork(["x.py"], os.environ)
    finally:
        signal.signal(signal.SIGINT, before)
    asked: list[bool] = []
    fork._ask = lambda word, descriptors=(): asked.append(word.interrupts)  # type: ignore[method-assign]
    fork.start(["x.py"], {})
    fork.close()
    assert asked == [interrupts]


def test_what_is_set_stays() -> None:
    given = {"OMP_NUM_THREADS": "4", "MALLOC_TRIM_THRESHOLD_": "1"}
    assert usual(2, given) == {"MALLOC_MMAP_THRESHOLD_": "33554432", "PYTHONHASHSEED": "0"}
    assert "PYTHONHASHSEED" not in usual(2, {"PYTHONHASHSEED": "7"})
    assert "OMP_NUM_THREADS" not in usual(1, {})
