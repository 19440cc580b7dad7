"""Processes that are forked from one, which has imported what each of them needs: imported once, not n times.

The process runs the workers' own command line up to the script, and forks for each word from the launcher: a worker, or
the coordinator. What it forks is forked twice, so that it loses its parent and the kernel gives it to the launcher
(`PR_SET_CHILD_SUBREAPER`): the launcher waits for it, and it ends with the launcher, as if that had started it.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, NoReturn, Protocol

import msgspec

from polyrhythm.runtime.wire.parent_death import aside, die_with, dies_with_us

FORKS = "POLYRHYTHM_FORKS"
"""Environment variable of the process that is forked, with the descriptor of its socket."""

PR_SET_CHILD_SUBREAPER = 36

ADAPTED = (sys.executable, "-u", "-m", "polyrhythm.runtime.script")
"""What runs a script in a worker, so that one that knows nothing of Polyrhythm takes part."""

COORDINATOR_PROGRAM = "polyrhythm.runtime.coordinator.process"
"""Module of what runs a coordinator, with a function `main`."""

KEPT_MEMORY = {"MALLOC_MMAP_THRESHOLD_": 32 * 2**20, "MALLOC_TRIM_THRESHOLD_": 2**30}
"""For glibc, bytes: a worker keeps what a step has freed for the next one, instead of getting it anew page by page."""

SAME_SETS = {"PYTHONHASHSEED": 0}
"""All workers go through a set of words in the same order, so that a vocabulary made of one is the same for all."""

FORKED = ("fork", "forkserver")
"""Values of --start-method that ask for workers that are forked from one process."""

UNFORKED = ("1", "gpu")
"""Values of --nproc-per-node with which there is nothing to fork."""

PRELOADED = ("torch._dynamo", "torch.nn.parallel", "torch.optim")
"""What the first optimizer and the first wrapper import besides what we do."""

DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/kfd", "/dev/accel0")
"""Files that a host with a GPU has, of which the libraries do not bear a fork."""

WATCHED = "POLYRHYTHM_WATCH"
"""Environment variable of processes into which `polyrhythm doctor` puts a watcher when their interpreter starts."""

NOBODY = 0
"""Answer in place of a pid."""

MOST_DESCRIPTORS = 253
"""That come with one word; Linux knows no more."""

M_TRIM_THRESHOLD, TRIMMED = -1, 64 * 2**20
"""For glibc: a coordinator, which lives as long as the job, gives memory back from so many bytes on."""

POLL_S = 0.01

SHOWS = "--sho"
"""How --show-config begins, however short it is cut: shorter, it may be another flag. It starts nothing."""


class RunningProcess(Protocol):
    """What a launcher needs of a worker: the part of `subprocess.Popen` that does not depend on who started it."""

    pid: int
    returncode: Any

    def terminate(self) -> None: ...

    def kill(self) -> None: ...

    def wait(self, timeout: float | None = None) -> int: ...


class ForkWord(NamedTuple):
    """What the launcher asks for: a worker, or a program with the descriptors that come with the word.

    Args:
        arguments: of its command line; in those of a program, ``{1}`` stands for the second descriptor.
        environment: all of it.
        program: module with a function `main`; the first descriptor is its standard input.
        interrupts: whether SIGINT is to reach the worker's script, as it would if the launcher had started it.
    """

    arguments: Sequence[str]
    environment: dict[str, str]
    program: str = ""
    interrupts: bool = True


class ForkedProcess:
    """A child of this process that somebody else has forked."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def wait(self, timeout: float | None = None) -> int:
        """As `subprocess.Popen.wait`."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while not self._has_ended():
            if deadline is not None and time.monotonic() > deadline:
                assert timeout is not None
                raise subprocess.TimeoutExpired(["a forked worker"], timeout)
            time.sleep(POLL_S)
        return self.returncode or 0

    def _has_ended(self) -> bool:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # whoever waits for all has it, and is about to say how it ended
                return True
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode is not None

    def _send(self, number: int) -> None:
        if not self._has_ended():
            os.kill(self.pid, number)


class WorkerFork:
    """The process that workers and the coordinator are forked from, seen from the launcher.

    Args:
        shown: what lists of processes show of all workers, after the interpreter and its module.
        environment: in which all is imported, with the `usual` on top.
    """

    def __init__(self, shown: Sequence[str], environment: Mapping[str, str]) -> None:
        adopt(True)
        self._interrupts = signal.getsignal(signal.SIGINT) is not signal.SIG_IGN  # before the launcher handles it
        self._socket, theirs = socket.socketpair()
        with theirs:
            descriptor = theirs.fileno()
            told = {**environment, **usual(2, environment), FORKS: str(descriptor)}
            command = [*ADAPTED, *shown]
            begins = aside(dies_with_us(), signal.SIGINT, signal.SIGHUP)
            self._process = subprocess.Popen(command, env=told, pass_fds=(descriptor,), preexec_fn=begins)
        self._answers = self._socket.makefile("r", encoding="ascii")

    def start(self, arguments: Sequence[str], environment: Mapping[str, str]) -> ForkedProcess | None:
        """A worker with these arguments in this environment; None if there is none that is our child."""
        return self._ask(ForkWord(arguments, {**environment}, interrupts=self._interrupts))

    def start_coordinator(self, order: int, memory: Sequence[int], listeners: Sequence[int]) -> ForkedProcess | None:
        """As `polyrhythm.runtime.launch.rendezvous.CoordinatorStart.start`, with these descriptors; None as above."""
        if len(memory) + len(listeners) >= MOST_DESCRIPTORS:
            return None
        names = [f"{{{number}}}" for number in range(1, 1 + len(memory) + len(listeners))]
        arguments = [",".join(names[: len(memory)]), *names[len(memory) :]]
        return self._ask(ForkWord(arguments, {**os.environ}, COORDINATOR_PROGRAM), [order, *memory, *listeners])

    def _ask(self, word: ForkWord, descriptors: Sequence[int] = ()) -> ForkedProcess | None:
        with contextlib.suppress(OSError):
            told = msgspec.json.encode(word) + b"\n"
            sent = socket.send_fds(self._socket, [told], descriptors)
            self._socket.sendall(told[sent:])
            if pid := int(self._answers.readline() or NOBODY):
                return ForkedProcess(pid)
        return None

    def close(self) -> None:
        self._answers.close()
        self._socket.close()
        self._process.kill()
        self._process.wait()
        adopt(False)


def begin_fork(arguments: Sequence[str], environment: Mapping[str, str]) -> WorkerFork | None:
    """The process to fork from while this one still reads its command line; None if it is not surely wanted.

    Args:
        arguments: of ``polyrhythm run``.
        environment: of this process.
    """
    words = [word.replace("_", "-") for word in arguments]
    value = next((after for word, after in pairwise(words) if word == "--nproc-per-node"), "1")
    value = next((word.partition("=")[2] for word in words if word.startswith("--nproc-per-node=")), value)
    other = any(word.startswith(("--on", SHOWS, "--help", "-h", "--no-python", "--start")) for word in words)
    placed = "RANK" in environment or "SLURM_NTASKS" in environment
    if value in UNFORKED or other or placed or "sync-switch" in " ".join(words) or not can_fork():
        return None
    return WorkerFork(arguments, environment)


def usual(processes: int, environment: Mapping[str, str]) -> dict[str, str]:
    """What a worker has in its environment unless it is set."""
    wanted = {**KEPT_MEMORY, **SAME_SETS, **({"OMP_NUM_THREADS": 1} if processes > 1 else {})}
    return {name: str(value) for name, value in wanted.items() if name not in environment}


def adopt(wanted: bool) -> None:
    """Become the parent of those below this process that lose theirs, or not any more, where the kernel knows of it."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, int(wanted))


def can_fork() -> bool:
    """Whether workers of this host can be forked: on Linux, without a GPU, if nobody watches them from their start."""
    here = sys.platform == "linux" and WATCHED not in os.environ
    return here and not any(Path(device).exists() for device in DEVICES)


def fork_workers() -> None:
    """In the process that is forked: return in each worker, which is a child of the launcher then.

    In any other process return at once.
    """
    if FORKS not in os.environ:
        return
    launcher = os.getppid()
    with socket.socket(fileno=int(os.environ.pop(FORKS))) as sock:
        for module in PRELOADED:
            importlib.import_module(module)
        gc.freeze()
        gc.enable()
        word, descriptors = next((word for word in words(sock) if fork_twice()), (None, []))
        if word is None:
            os._exit(0)
        if os.getppid() != launcher:  # a kernel, or a sandbox, that does not know of such parents
            answer(sock, NOBODY)
            os._exit(1)
        die_with(launcher)
        answer(sock, os.getpid())  # not before: it is no child of the launcher until now
    become(word)
    if word.program:
        run_program(word, descriptors)
    if word.interrupts:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def answer(sock: socket.socket, pid: int) -> None:
    """Tell the launcher who was forked; if there is no launcher any more, end."""
    try:
        sock.sendall(b"%d\n" % pid)
    except ConnectionError:
        os._exit(1)


def words(sock: socket.socket) -> Iterator[tuple[ForkWord, list[int]]]:
    """What the launcher asks for, one after the other, each with its descriptors, which only a fork of us needs."""
    while True:
        told, descriptors = b"", list[int]()
        while not told.endswith(b"\n"):
            try:
                part, given, *_ = socket.recv_fds(sock, 2**16, MOST_DESCRIPTORS)
            except ConnectionError:  # the launcher was killed while it had not read all answers
                return
            if not part:
                return
            told, descriptors = told + part, descriptors + given
        yield msgspec.json.decode(told, type=ForkWord), descriptors
        for descriptor in descriptors:
            os.close(descriptor)


def fork_twice() -> bool:
    """Whether this is the new process, whose parent has been gone since."""
    between = os.fork()
    if between:
        os.waitpid(between, 0)
        return False
    parent = os.getpid()
    if os.fork():
        os._exit(0)
    while os.getppid() == parent:
        os.sched_yield()
    return True


def become(word: ForkWord) -> None:
    """A process of its own, also in its random numbers, as is one that was started."""
    sys.argv[1:] = word.arguments
    os.environ.clear()
    os.environ.update(word.environment)
    for drawing in ("torch", "numpy.random"):  # Python's own generator does so after each fork
        if drawing in sys.modules:
            sys.modules[drawing].seed()


def run_program(word: ForkWord, descriptors: Sequence[int]) -> NoReturn:
    """Be the program that was asked for, to its end."""
    sys.argv[1:] = [argument.format(*descriptors) for argument in word.arguments]
    os.dup2(descriptors[0], 0)
    with contextlib.suppress(AttributeError):  # another C library
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, TRIMMED)
    show_as(f"{sys.executable} -m {word.program}")
    sys.exit(importlib.import_module(word.program).main())


def show_as(command: str) -> None:
    """What lists of processes show of this one, in the place of the command line of whom it was forked from."""
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    if room := end - start - 1:
        shown = command.replace(" ", "\0").encode()[:room]
        ctypes.memmove(start, shown.ljust(room, b"\0"), room)


def end(process: RunningProcess, patience_s: float) -> bool:
    """Wait for a process; whether it had to be killed."""
    try:
        process.wait(patience_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return True
    return False
