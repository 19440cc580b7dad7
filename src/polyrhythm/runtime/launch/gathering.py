"""Which hosts of a job are there: whom it waits for, and, if their number may change, when it begins without others."""

import os
import threading
from collections.abc import Callable
from time import monotonic, sleep

from polyrhythm.errors import PolyrhythmError, UnreachableError
from polyrhythm.lines import say
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.wire.control_protocol import Status
from polyrhythm.runtime.wire.protocol import Address

HOSTS = "POLYRHYTHM_HOSTS"
"""Environment variable of a worker of such a job with MIN:MAX."""

LAST_CALL_S = 10.0
"""How long the job waits for further hosts once the least are there."""

LOOK_S = 0.5
QUIET_S = 30.0
"""After which it is said for whom the job waits."""

FIRST_S = 600.0
"""How long another host waits for the coordinator's first answer: on a busy host its process takes minutes to begin."""


class LastCall(threading.Thread):
    """Looks who has come, on the host of the coordinator, until the job begins.

    Args:
        address: of the coordinator.
        node: this host.
        workers: of each host.
        say: prints lines.
    """

    def __init__(self, address: Address, node: Node, workers: int, say: Callable[[str], None]) -> None:
        super().__init__(name="polyrhythm-gathering", daemon=True)
        self._address, self._node, self._workers, self._say = address, node, workers, say
        self._since: float | None = None
        self._tell_at_s: float | None = monotonic() + QUIET_S

    def run(self) -> None:
        while not self._look():
            sleep(LOOK_S)

    def _look(self) -> bool:
        try:
            state = steer.status(self._address)
            return state.epoch >= 0 or self._complete(present(state, self._workers))
        except PolyrhythmError:  # not yet, or not any more: then the launcher ends, and this thread with it
            return False

    def _complete(self, hosts: set[int]) -> bool:
        missing = [host for host in range(self._node.count) if host not in hosts]
        if len(hosts) >= (self._node.least or self._node.count) and self._since is None:
            self._since = monotonic()
        if missing and (self._since is None or monotonic() < self._since + LAST_CALL_S):
            self._tell_of(missing)
            return False
        for host in missing:
            for rank in range(host * self._workers, (host + 1) * self._workers):
                steer.absent(self._address, rank, said=True)
            self._say(f"host {host} is not there; the job begins without it, and it may come at any time")
        return True

    def _tell_of(self, missing: list[int]) -> None:
        """Once: their launchers may have been refused, or were never started.

        The workers of this host may themselves wait for the others, and then join with them.
        """
        if self._tell_at_s is not None and monotonic() > self._tell_at_s:
            self._tell_at_s = None
            others = [host for host in missing if host != self._node.rank] or missing
            who = f"host{'s' if len(others) > 1 else ''} {', '.join(map(str, others))}"
            self._say(f"the job waits for {who} of {self._node.count} to begin")


def state_of_first(first: Address) -> Status:
    """How the job is that the first host has begun; it listens before it has imported all that it needs.

    Raises:
        UnreachableError: if it, and its standby, is gone, or does not answer for too long.
    """
    begun_s, told = monotonic(), False
    while True:
        asked_s = monotonic()
        try:
            return steer.status(first, QUIET_S)
        except UnreachableError:
            if monotonic() < asked_s + QUIET_S or monotonic() >= begun_s + FIRST_S:  # gone, or silent for too long
                raise
        if not told:
            told = True
            say(f"the coordinator at {first.coordinator} listens but does not answer yet; it has {FIRST_S:g} s")


def present(state: Status, workers: int) -> set[int]:
    """Hosts all of whose workers have joined; each has so many."""
    ranks = {worker.rank for worker in state.workers}
    hosts = {rank // workers for rank in ranks}
    return {host for host in hosts if ranks >= {*range(host * workers, (host + 1) * workers)}}


def changing_hosts() -> str:
    """MIN:MAX, if hosts of this job may come and go."""
    return os.environ.get(HOSTS, "")
