"""A coordinator's `StandbyLink` and a real `Standby` in one process and in virtual time, on a link that delays and is
cut.
"""

import heapq
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from polyrhythm.errors import UnreachableError
from polyrhythm.runtime.coordinator.recovery import standby as standby_module
from polyrhythm.runtime.coordinator.recovery.standby import Standby
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.runtime.wire.recovery.memory import RecoveryMemory
from polyrhythm.runtime.wire.recovery.standby_protocol import TookOver

HANG_AFTER_S, PERIOD_S = 5.0, 0.5


class Time:
    """Timers in virtual time; it is a `Loop` as far as those need one who never read a socket."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self._timers: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = count()

    def clock(self) -> float:
        return self.now_s

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> None:
        heapq.heappush(self._timers, (self.now_s + delay_s, next(self._numbers), callback))

    def run(self, until_s: float) -> None:
        while self._timers and self._timers[0][0] <= until_s:
            due_s, _, callback = heapq.heappop(self._timers)
            self.now_s = max(self.now_s, due_s)
            callback()
        self.now_s = until_s

    def run_until(self, done: Callable[[], object], timeout_s: float) -> bool:
        end_s = self.now_s + timeout_s
        while not done() and self._timers and self._timers[0][0] <= end_s:
            self.run(self._timers[0][0])
        return bool(done())


class End:
    """One end of a connection: what is sent comes out at the other one later, or never."""

    def __init__(self, time: Time, delay_s: Callable[[], float], passes: Callable[[], bool]) -> None:
        self._time, self._delay_s, self._passes = time, delay_s, passes
        self.other: End = self
        self.handler: Any = None
        self.closed = self.cut = self.local = False
        self.sent: list[Any] = []
        self._due_s = 0.0

    def send(self, message: Any, payload: Any = None, about: Any = None) -> None:
        if self.closed:
            return
        self.sent.append(message)
        data = None if payload is None else bytes(payload)
        self._deliver(lambda: self.other._arrive(message, data, about))

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            self._deliver(self.other.lose)

    def lose(self) -> None:
        if not self.closed:
            self.closed = True
            self.handler.lost("the other side closed the connection")

    def _arrive(self, message: Any, data: bytes | None, about: Any) -> None:
        if self.closed:
            return
        if data is not None:
            self.handler.destination(message, about)[:] = data
        self.handler.received(message)

    def _deliver(self, what: Callable[[], None]) -> None:
        """In order, and only if the link stands when it leaves."""
        if self._passes():
            self._due_s = max(self._due_s, self._time.now_s + self._delay_s())
            self._time.call_later(self._due_s - self._time.now_s, what)


def connected(
    time: Time, delay_s: Callable[[], float] = lambda: 0.01, up: Callable[[], bool] = lambda: True
) -> tuple[End, End]:
    one, other = End(time, delay_s, up), End(time, delay_s, up)
    one.other, other.other = other, one
    return one, other


class Silences:
    """The heartbeats of workers that are heard as long as nothing says otherwise."""

    def __init__(self, unheard: Callable[[int], bool] = lambda _: False) -> None:
        self._unheard = unheard

    def __contains__(self, rank: object) -> bool:
        return True

    def silent_s(self, rank: int) -> float:
        return 1e9 if self._unheard(rank) else 0.0


def worker_on(host: int) -> Any:
    """The channel of a worker, on the coordinator's own host or on another one."""
    sock = SimpleNamespace(getpeername=lambda: (f"10.0.0.{host}", 1))
    return SimpleNamespace(local=not host, socket=sock)


class GuardedServer:
    """What a `StandbyLink` guards: a job with a worker on each of so many hosts."""

    def __init__(self, time: Time, hosts: int, unheard: Callable[[int], bool] = lambda _: False) -> None:
        self.loop: Any = time
        self.config = JobConfig(
            job="job", token="secret", workers=hosts, hang_after=HANG_AFTER_S, heartbeat_s=PERIOD_S, standby="other"
        )
        self.heartbeats: Any = Silences(unheard)
        self.channels: dict[int, Any] = {rank: worker_on(rank) for rank in range(hosts)}
        self.gave_up: list[str] = []
        self.started_s = 0.0

    def elapsed(self) -> float:
        return float(self.loop.now_s)

    def give_up(self, reason: str) -> None:
        self.gave_up.append(reason)


class FollowingStandby:
    """A real `Standby` whose steps are made in virtual time, and which meets the coordinator by `meet`."""

    def __init__(self, time: Time, config: JobConfig, meet: Callable[[Any], Any]) -> None:
        self.memory = RecoveryMemory.create()
        self._time = time
        with patch.object(standby_module, "Loop", lambda spin_s: time):
            self.standby = Standby(config, Address("tcp:10.0.0.0:1", "job", "secret"), self.memory)
        self._meet = meet
        self.took_over_s: float | None = None
        self.over = self.stopped = False
        self.look()

    def look(self) -> None:
        """One turn of `Standby.follow`."""
        standby = self.standby
        if self.took_over_s is not None or self.over:
            return
        if not self.stopped:
            if standby._channel is None:
                self._join()
            if standby._is_silent:
                self.took_over_s = self._time.now_s
                if standby._channel is not None:
                    standby._channel.send(TookOver())
                return
            self.over = standby._over
        self._time.call_later(PERIOD_S / 2, self.look)

    def _join(self) -> None:
        """As `Standby._meet`, which may try once only: waiting is up to the driver."""
        with (
            patch.object(standby_module, "join", lambda *given, **more: self._meet(self.standby)),
            patch("time.sleep", self._give_up_for_now),
        ):
            try:
                self.standby._meet()
            except UnreachableError:
                return

    def _give_up_for_now(self, _: float) -> None:
        raise UnreachableError("later")
