"""A worker that is asked to end (SIGTERM) finishes its step, hands its samples back and leaves the job."""

import os
import signal
import threading
from collections.abc import Callable
from types import FrameType

LEFT = 128 + signal.SIGTERM
"""Exit status of a worker that was asked to end and has left its job, which is no failure."""


def preempted(error: BaseException | None) -> bool:
    """Whether a process ends because it was asked to, between two steps of its worker.

    >>> preempted(SystemExit(LEFT)), preempted(SystemExit(1))
    (True, False)
    """
    return isinstance(error, SystemExit) and error.code == LEFT


class TerminationWatch:
    """Hears of SIGTERM in place of the system's own reaction; a second one ends the process.

    A script that has a handler of its own keeps it.

    Args:
        asked: called once, in the main thread, between any two of its instructions.
    """

    def __init__(self, asked: Callable[[], None]) -> None:
        self._asked = asked

    def start(self) -> None:
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)

    def stop(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.stop()
        self._asked()


def _forget() -> None:
    # A forked process, such as one of the script's own, is no worker: it ends as any other.
    if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), TerminationWatch):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
