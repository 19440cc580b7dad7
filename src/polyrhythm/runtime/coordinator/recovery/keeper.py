"""A process that has imported all, and forks the coordinator: when that is killed, the next one is there at once.

It holds what must outlive a coordinator: the listening sockets, where workers wait meanwhile, and the memory.
"""

import gc
import logging
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from polyrhythm.errors import BROKEN
from polyrhythm.runtime.wire.parent_death import die_with
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory

log = logging.getLogger(__name__)

AGAIN = 76
"""Exit status of a coordinator whose workers have finished a training, and begin another one."""

SERVER_LOST = 75
"""Exit status of a coordinator that has lost a server of parameters, of which the next one starts all again."""

Serve = Callable[[RecoveryMemory], int]
"""Body of a coordinator; its exit status."""


class CoordinatorKeeper:
    """Has a coordinator serve, and another one when it dies.

    Args:
        serve: see `Serve`; it is called in a process of its own.
        most: how often another one is started.
        memory: in which they leave word for each other.
    """

    def __init__(self, serve: Serve, most: int, memory: RecoveryMemory) -> None:
        self._serve, self._most, self._memory = serve, most, memory
        self._child, self._ending = 0, False

    def run(self) -> int:
        """Until a coordinator has ended in good order, or too many have died; the exit status."""
        signal.signal(signal.SIGTERM, self._hand_on)
        gc.collect()
        gc.freeze()  # so that what both have stays shared
        while True:
            code = self._run_one()
            if code == AGAIN and not self._ending:
                continue
            if code in (0, BROKEN, AGAIN) or self._ending or not self._allowed(code):
                return code if code >= 0 else 128 - code

    def _allowed(self, code: int) -> bool:
        deaths = self._memory.count_death()
        how = how_it_ended(code)
        if deaths > self._most:
            log.error("the coordinator %s; it was started again %d times before, and the job ends", how, deaths - 1)
            return False
        log.warning("the coordinator %s; it is started again (%d of %d)", how, deaths, self._most)
        return True

    def _run_one(self) -> int:
        keeper = os.getpid()
        self._child = os.fork()
        if not self._child:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            die_with(keeper)
            os._exit(self._body())
        if self._ending:
            os.kill(self._child, signal.SIGTERM)
        status = os.waitpid(self._child, 0)[1]
        self._child = 0
        return os.waitstatus_to_exitcode(status)

    def _body(self) -> int:
        try:
            return self._serve(self._memory)
        except BaseException:
            log.exception("the coordinator failed")
            return 1

    def _hand_on(self, number: int, frame: FrameType | None) -> None:
        self._ending = True
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, number)


def how_it_ended(code: int) -> str:
    """Of a coordinator's exit status.

    >>> how_it_ended(-9), how_it_ended(1)
    ('was killed by SIGKILL', 'failed with exit code 1')
    """
    if code == SERVER_LOST:
        return "has lost a parameter server"
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"failed with exit code {code}"
