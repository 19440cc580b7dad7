"""A worker that is asked to end (SIGTERM) finishes its step, hands its samples back and leaves the job."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import ClassVar, Literal

from polyrhythm.lines import say
from polyrhythm.runtime.wire.job_config import JobConfig

ENDING = "POLYRHYTHM_ENDING"
"""Environment variable of a worker with a file in which its launcher says how far it is once it is asked to end."""

SETTLE_S = 0.5
"""In which all that are asked to end together hear of it."""

POLL_S = 0.02

LEFT = 128 + signal.SIGTERM
"""Exit status of a worker that was asked to end and has left its job, which is no failure."""


def preempted(error: BaseException | None) -> bool:
    """Whether a process ends because it was asked to, between two steps of its worker.

    >>> preempted(SystemExit(LEFT)), preempted(SystemExit(1))
    (True, False)
    """
    return isinstance(error, SystemExit) and error.code == LEFT


@contextmanager
def file_in_memory(variable: str) -> Iterator[None]:
    """A file that those whom this process starts find under an environment variable; however it ends, none is left."""
    with open(os.memfd_create(variable), "rb") as file:
        os.environ[variable] = f"/proc/{os.getpid()}/fd/{file.fileno()}"
        try:
            yield
        finally:
            del os.environ[variable]


def tell_ending(word: Literal["keeps", "over"]) -> None:
    """The launcher has a last checkpoint kept, or is through with that: workers may leave."""
    with suppress(KeyError, OSError), open(os.environ[ENDING], "w", encoding="ascii") as file:
        file.write(word)


def told_ending() -> str:
    """What the launcher has said, if there is one: nothing as long as it is not asked to end."""
    try:
        with open(os.environ[ENDING], encoding="ascii") as file:
            return file.read()
    except (KeyError, OSError):
        return "over"


class TerminationWatch:
    """Hears of SIGTERM in place of the system's own reaction, and of one that came to the end of a session before.

    Whoever ends a job may tell each of its processes, and then the launcher tells its workers, too: what comes again
    within ``config.grace`` is the same. In a job that keeps checkpoints a worker stays for the last one, if its
    launcher has been asked to end as well. A script that has a handler of its own keeps it.

    Args:
        asked: called once, between any two instructions of the main thread or in another one.
        config: of the job.
        keep: has a last checkpoint kept; called in a thread where no launcher of ours does it, as under torchrun.
    """

    unheeded: ClassVar[bool] = False

    def __init__(self, asked: Callable[[], None], config: JobConfig, keep: Callable[[], None] = lambda: None) -> None:
        self._asked, self._config, self._keep = asked, config, keep
        self._heard_s: float | None = None
        self._stopped = False

    def start(self) -> None:
        here = threading.current_thread() is threading.main_thread()
        if here and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, self._handle)
        if TerminationWatch.unheeded:
            TerminationWatch.unheeded = False
            self._asked()

    def stop(self, ending: bool = False) -> None:
        """Nothing is asked any more; the system's own reaction again, unless this process is `ending`."""
        self._stopped = True
        if not ending:
            TerminationWatch.unheeded |= self._heard_s is not None
            self._restore()

    def _restore(self) -> None:
        if signal.getsignal(signal.SIGTERM) == self._handle:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self._heard_s is None:
            self._heard_s = time.monotonic()
            if self._config.checkpoint is None or (ENDING in os.environ and self._may_leave()):
                self._asked()
            else:
                threading.Thread(target=self._wait, daemon=True).start()
        elif time.monotonic() - self._heard_s > self._config.grace:
            self._restore()
            os.kill(os.getpid(), number)

    def _may_leave(self) -> bool:
        told = told_ending()
        return told == "over" or (not told and time.monotonic() - (self._heard_s or 0.0) > SETTLE_S)

    def _wait(self) -> None:
        if ENDING not in os.environ:
            try:
                self._keep()
            except Exception as error:  # whatever it is, the process ends as it was asked to
                say(
                    f"no last checkpoint could be asked for ({type(error).__name__}: {error}); this worker ends without"
                )
        while not self._may_leave():
            time.sleep(POLL_S)
        if not self._stopped:
            self._asked()


def _forget() -> None:
    # A forked process, such as one of the script's own, is no worker: it ends as any other.
    if isinstance(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), TerminationWatch):
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


os.register_at_fork(after_in_child=_forget)
