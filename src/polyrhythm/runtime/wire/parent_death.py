"""Processes that end with the one that started them, so that no orphan stays behind (Linux; elsewhere they may).

The kernel ends them in both ways that are used here, so it also reaches a process that is stopped, or that has not run
a line yet:

- The **parent-death signal** is for commands: it outlives the exec. It is sent when the *thread* that forked ends, so
  only a thread that waits for the command may start one.
- A **lifeline** is for forked processes: a pipe that the starter holds open for writing until it is gone, whichever
  thread forked. An exec lets go of it, as does who closes all descriptors to become a daemon.
"""

import contextlib
import ctypes
import fcntl
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker

PR_SET_PDEATHSIG = 1


def dies_with_us(number: int = signal.SIGKILL) -> Callable[[], None]:
    """What `subprocess.Popen` calls in a new process (``preexec_fn``), so that it ends when this one is killed.

    Args:
        number: signal that ends it. A launcher gets SIGTERM, on which it ends its workers and gives them time.
    """
    return partial(die_with, os.getpid(), number, ctypes.CDLL(None))


def aside(bind: Callable[[], None], *numbers: int) -> Callable[[], None]:
    """`bind`, in a new process that these signals do not reach: whoever has started it hears them for it."""

    def prepare() -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        bind()

    return prepare


@contextlib.contextmanager
def interrupts_held() -> Iterator[None]:
    """What `multiprocessing` starts meanwhile never hears Ctrl-C, also while it imports; its starter does."""
    resource_tracker.ensure_running()  # whose own start lets the signal through again
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def die_with(parent: int, number: int = signal.SIGKILL, libc: ctypes.CDLL | None = None) -> None:
    """End this process when its parent is killed.

    Args:
        parent: its pid.
        number: signal that ends it.
        libc: to be given in a process that must not load anything.
    """
    if sys.platform == "linux":
        (libc or ctypes.CDLL(None)).prctl(PR_SET_PDEATHSIG, int(number))
        if os.getppid() != parent:  # gone before the kernel was told
            os.kill(os.getpid(), number)


def end_with_starter() -> None:
    """In a new process of `multiprocessing`: end when the process that asked for it is gone, however that ended.

    The parent may be a fork server, which lives as long as any of its copies.
    """
    starter = multiprocessing.parent_process()
    assert starter is not None, "the main process was started by nobody"
    end_with(starter.sentinel)


def tie_forks() -> None:
    """From now on, processes that are forked from this one end with it, as do those forked from them.

    Daemons (fork, setsid, fork) and other programs (fork, exec) stay free.
    """
    global _lifeline
    if _lifeline is None and sys.platform == "linux":
        reading, writing = os.pipe()
        _lifeline = _Lifeline(reading, writing, os.fstat(reading).st_ino, os.getsid(0))
        os.register_at_fork(after_in_child=_follow)


def end_with(descriptor: int) -> None:
    """End this process when a pipe has no writer any more; its read end must be this process's alone."""
    if sys.platform == "linux":
        fcntl.fcntl(descriptor, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(descriptor, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_ASYNC | os.O_NONBLOCK)
        with contextlib.suppress(BlockingIOError):
            if not os.read(descriptor, 1):  # gone before the kernel was told
                os.kill(os.getpid(), signal.SIGKILL)


@dataclass
class _Lifeline:
    """Descriptors of the pipe, its inode, and the session of the process that made it. Only that one can write."""

    reading: int
    writing: int
    inode: int
    session: int

    def holds(self, descriptor: int) -> bool:
        """Whether the number still means the pipe: a script may have closed it, and opened something else."""
        try:
            return os.fstat(descriptor).st_ino == self.inode
        except OSError:
            return False

    def follow(self) -> None:
        """In a forked process: let go of the write end, and end when nobody has it."""
        if self.holds(self.writing):
            os.close(self.writing)
        self.writing = -1
        if not self.holds(self.reading):
            return
        inherited = self.reading
        if os.getsid(0) == self.session:
            # The signal belongs to an open file, and a fork shares those: so open it anew.
            self.reading = os.open(f"/proc/self/fd/{inherited}", os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            end_with(self.reading)
        os.close(inherited)


_lifeline: _Lifeline | None = None


def _follow() -> None:
    assert _lifeline is not None, "registered with it"
    with contextlib.suppress(OSError):  # no descriptor is left: better a process without the line than none
        _lifeline.follow()
