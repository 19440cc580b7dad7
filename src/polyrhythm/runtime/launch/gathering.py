"""A job whose number of hosts may change: when it begins, and which of its hosts it does not wait for."""

import os
import threading
import time
from collections.abc import Callable

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.launch.nodes import Node
from polyrhythm.runtime.wire.protocol import Address

HOSTS = "POLYRHYTHM_HOSTS"
"""Environment variable of a worker of such a job with MIN:MAX."""

LAST_CALL_S = 10.0
"""How long the job waits for further hosts once the least are there."""

LOOK_S = 0.5


class LastCall(threading.Thread):
    """Looks who has come, on the host of the coordinator, until the job begins.

    Args:
        address: of the coordinator.
        node: this host.
        processes: workers of each host.
        say: prints lines.
    """

    def __init__(self, address: Address, node: Node, processes: int, say: Callable[[str], None]) -> None:
        super().__init__(name="polyrhythm-gathering", daemon=True)
        self._address, self._node, self._processes, self._say = address, node, processes, say
        self._since: float | None = None

    def run(self) -> None:
        while not self._look():
            time.sleep(LOOK_S)

    def _look(self) -> bool:
        try:
            return self._complete(present(self._address, self._processes))
        except PolyrhythmError:  # not yet, or not any more: then the launcher ends, and this thread with it
            return False

    def _complete(self, hosts: set[int]) -> bool:
        missing = [host for host in range(self._node.count) if host not in hosts]
        if len(hosts) >= self._node.least and self._since is None:
            self._since = time.monotonic()
        if missing and (self._since is None or time.monotonic() < self._since + LAST_CALL_S):
            return False
        for host in missing:
            self._say(f"host {host} is not there; the job begins without it, and it may come at any time")
            for rank in range(host * self._processes, (host + 1) * self._processes):
                steer.absent(self._address, rank)
        return True


def present(address: Address, processes: int) -> set[int]:
    """Hosts all of whose workers have joined."""
    ranks = {worker.rank for worker in steer.status(address).workers}
    hosts = {rank // processes for rank in ranks}
    return {host for host in hosts if ranks >= {*range(host * processes, (host + 1) * processes)}}


def changing_hosts() -> str:
    """MIN:MAX, if hosts of this job may come and go."""
    return os.environ.get(HOSTS, "")
