"""How a command ends before its end: by Ctrl-C, or by SIGTERM, which ends it in the same way."""

import os
import signal
import subprocess
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from polyrhythm.errors import EndedError


class EarlyEnd:
    """What has ended this process's command early, if anything has, as long as the command lasts."""

    def __init__(self) -> None:
        self._number: int | None = None
        self._blocks = 0

    @property
    def came(self) -> bool:
        """Whether a signal has come."""
        return self._number is not None

    @property
    def by_sigterm(self) -> bool:
        return self._number == signal.SIGTERM

    @property
    def how(self) -> str:
        return "ended by SIGTERM" if self.by_sigterm else "interrupted"

    @property
    def status(self) -> int:
        """Exit status, as drivers have it: 143 or 130."""
        return 128 + (signal.SIGTERM if self.by_sigterm else signal.SIGINT)

    @contextmanager
    def by_signals(self) -> Iterator[None]:
        """A block that SIGINT and SIGTERM end with a KeyboardInterrupt; one that is ignored, as in a job in the
        background, stays ignored."""
        if threading.current_thread() is not threading.main_thread():  # no other may have handlers
            yield
            return
        self._blocks += 1
        numbers = [each for each in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(each) != signal.SIG_IGN]
        before = [signal.signal(each, self._end) for each in numbers]
        hook, threading.excepthook = threading.excepthook, self._unless_ended(threading.excepthook)
        try:
            yield
        finally:
            threading.excepthook = hook
            for each, handler in zip(numbers, before, strict=True):
                signal.signal(each, handler)
            self._blocks -= 1
            if not self._blocks:
                self._number = None

    @contextmanager
    def kept(self) -> Iterator[None]:
        """A block of a library that may set handlers of its own: after it those of the command hold again."""
        if not self._blocks or threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.getsignal(each) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        except SystemExit as left:  # of such a handler
            if left.code != signal.SIGTERM:
                raise
            self._end(signal.SIGTERM, None)
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def over(self) -> None:
        """The command goes on: what has come was about a part of it."""
        self._number = None

    @contextmanager
    def alone(self) -> Iterator[None]:
        """A block that fails with nothing but a KeyboardInterrupt after a signal, which its processes may have too."""
        try:
            yield
        except Exception:
            if not self.came:
                raise
            raise EndedError from None

    def _end(self, number: int, frame: object) -> None:
        self._number = number
        warnings.filterwarnings("ignore", module="joblib")  # of tasks that are not done, as nobody wants them now
        raise EndedError

    def _unless_ended(self, tell: Callable[[Any], Any]) -> Callable[[Any], None]:
        """joblib's thread fails when its processes are ended, which means nothing then."""
        return lambda failed: None if self.came else tell(failed)


def unheard(failed: object) -> None:
    """A thread that fails after an early end."""


early_end = EarlyEnd()
"""Of this process."""

GRACE_S = 30.0
"""How long a command that is another process may take to end, as workers may."""


def in_foreground() -> bool:
    """Whether Ctrl-C at the terminal goes to this process and to those that it has started, wherever stdin is from."""
    try:
        with open("/dev/tty", "rb", buffering=0) as terminal:
            return os.tcgetpgrp(terminal.fileno()) == os.getpgrp()
    except OSError:  # there is none, or none any more
        return False


@contextmanager
def ended_too(process: "subprocess.Popen[Any]") -> Iterator[None]:
    """A block with another process, which is ended with the block and has time for it, but not after another signal."""
    try:
        yield
    except KeyboardInterrupt:
        try:
            if early_end.by_sigterm or not in_foreground():  # a terminal has interrupted it, too
                process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=GRACE_S)
        finally:
            process.kill()
            process.wait()
        raise
