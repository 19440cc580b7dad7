"""Signs of life in both directions, in a thread of their own: a coordinator that is busy is not one that is stopped.

Each heartbeat of a worker is answered with one. On the same connection a worker hears what must reach it while it
stands in a collective, and says what it answers to that.
"""

import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias

from polyrhythm.core import LeftReason
from polyrhythm.errors import FrameError
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import Loop, LoopThread
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Confirmed, Cut, Heartbeat, LeaveJob, Propose

HearAnswer: TypeAlias = Callable[[int, Confirmed | Heartbeat | Saved], None]
"""Told what a worker says beside its steps, in the thread of the heartbeats."""


ALIVE = Heartbeat()


class HeartbeatConnection:
    """Handler of a worker's second connection, on which both sides show that they run."""

    def __init__(self, worker: int, channel: Channel, answered: HearAnswer) -> None:
        self.channel = channel
        self.heard_s = time.monotonic()
        self._worker, self._answered = worker, answered

    def received(self, message: Any) -> None:
        self.heard_s = time.monotonic()
        if isinstance(message, Confirmed | Saved):
            self._answered(self._worker, message)
        elif isinstance(message, Heartbeat):
            self.channel.send(ALIVE)
            if message.figures:
                self._answered(self._worker, message)
        else:
            raise FrameError(f"the heartbeat of rank {self._worker} sent {type(message).__name__}")

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the heartbeat of rank {self._worker} announced {payload.nbytes} bytes")

    def lost(self, reason: str) -> None:
        """The worker's own connection tells of its end."""


class Heartbeats(LoopThread):
    """The heartbeats of all workers. The connections are served here, and everything else is called in another thread.

    Args:
        answered: see `HearAnswer`.

    Example:
        >>> heartbeats = Heartbeats(print)
        >>> 3 in heartbeats, heartbeats.silent_since(0.0)
        (False, [])
        >>> heartbeats.stop()
    """

    def __init__(self, answered: HearAnswer) -> None:
        super().__init__("polyrhythm-heartbeats")
        self._answered = answered
        self._connections: dict[int, HeartbeatConnection] = {}

    def __contains__(self, worker: object) -> bool:
        return worker in self._connections

    def expect(
        self, worker: int, channel: Channel, loop: Loop, taken: Callable[[], None] = lambda: None
    ) -> HeartbeatConnection:
        """The handler of a channel that `loop` serves until its next turn, and this thread after it; then `taken`."""
        connection = self._connections[worker] = HeartbeatConnection(worker, channel, self._answered)
        loop.call_later(0.0, partial(self._take, connection, loop, taken))
        return connection

    def silent_since(self, time_s: float) -> list[int]:
        """Workers of whom nothing was heard since then."""
        return [worker for worker, connection in list(self._connections.items()) if connection.heard_s < time_s]

    def silent_s(self, worker: int) -> float:
        """Seconds since something was heard of a worker; 0 if its heartbeat has yet to come."""
        connection = self._connections.get(worker)
        return 0.0 if connection is None else time.monotonic() - connection.heard_s

    def forgive(self) -> None:
        """Nobody could be heard for a while."""
        for connection in list(self._connections.values()):
            connection.heard_s = time.monotonic()

    def tell(self, message: Cut | Propose) -> None:
        """Tell every worker."""
        channels = [connection.channel for connection in self._connections.values()]
        self._do(lambda: send_all(channels, message))

    def ask_to_leave(self, worker: int) -> None:
        """Tell one worker to leave."""
        self._do(partial(self._connections[worker].channel.send, LeaveJob()))

    def forget(self, worker: int) -> None:
        connection = self._connections.pop(worker, None)
        if connection is not None:
            self._do(connection.channel.close)

    def _take(self, connection: HeartbeatConnection, loop: Loop, taken: Callable[[], None]) -> None:
        channel = connection.channel
        if not channel.closed:
            loop.release(channel)
            self._do(partial(self.loop.add, channel, connection))
            taken()

    def _do(self, task: Callable[[], None]) -> None:
        if self.ident is None:
            self.start()
        self.loop.call_from_thread(task)


class HangWatch:
    """Looks now and then who is silent for too long.

    The thread of the heartbeats looks, after it has read what has come: a worker is not removed because this process
    did not read in time.

    Args:
        loop: in which workers are removed.
        heartbeats: of all workers.
        config: of the job as it is now.
        remove: called with who hangs, why it is removed, the way in which it leaves, and a hint.
    """

    def __init__(
        self,
        loop: Loop,
        heartbeats: Heartbeats,
        config: Callable[[], JobConfig],
        remove: Callable[[int, str, LeftReason, str], None],
    ) -> None:
        self._loop, self._heartbeats, self._config, self._remove = loop, heartbeats, config, remove
        self._looked_s = loop.clock()

    def begin(self) -> None:
        """In the thread of the heartbeats."""
        self._heartbeats.loop.call_later(self._config().heartbeat_s, self._look)

    def _look(self) -> None:
        now, config = self._loop.clock(), self._config()
        if now - self._looked_s > 2 * config.heartbeat_s:  # this process itself was stopped, such as by Ctrl-Z
            self._heartbeats.forgive()
        elif silent := self._heartbeats.silent_since(now - config.hang_after):
            self._loop.call_from_thread(partial(self._remove_all, silent))
        self._looked_s = now
        self.begin()

    def _remove_all(self, silent: list[int]) -> None:
        hang_after = self._config().hang_after
        still = self._heartbeats.silent_since(self._loop.clock() - hang_after)
        for worker in [worker for worker in silent if worker in still]:
            reason = f"rank {worker} has not answered for {hang_after:g} s"
            self._remove(worker, reason, "hung", "; see --hang-after")


def send_all(channels: Iterable[Channel], message: Cut | Propose) -> None:
    for channel in channels:
        channel.send(message)
