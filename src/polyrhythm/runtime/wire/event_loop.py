"""One readiness loop: listeners, channels and timers of one thread, so that nothing needs a lock.

Who waits spins: for an answer that is about to come, falling asleep and being woken up takes longer than the answer. It
looks again and again for a short time, unless someone else can use the processor, and sleeps only then. A process whose
answers do not come in that time seldom tries.
"""

import heapq
import os
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any, BinaryIO, Final, TypeAlias, TypeVar

from polyrhythm.lines import TOO_MANY, reason_of
from polyrhythm.runtime.wire.connection import Channel, ConnectionHandler
from polyrhythm.runtime.wire.frames import encode

Clock: TypeAlias = Callable[[], float]

READ: Final = select.EPOLLIN
WRITE: Final = select.EPOLLOUT
MOST_EVENTS: Final = 64
"""Sockets that are served in a turn; the others are served in the next."""
LONGEST_S: Final = 86400.0
"""How long one wait is at most, whatever is due later: the kernel counts milliseconds in 32 bits, 24 days."""

Answer = TypeVar("Answer")

SPIN_S: Final = 200e-6
"""How long a waiting process spins: a few times what a wake-up takes on a virtual machine."""
ALONE_S: Final = 60e-6
"""How long before that it does not offer the processor to others: switching to them costs more than a quick answer."""
TAKEN_S: Final = 100e-6
"""A processor that comes back later than that when it is offered to others was taken by one."""
MOST_SKIPPED: Final = 63
"""Waits in a row that do without, after attempts that came to nothing."""


class Attempts:
    """When to try what may come to nothing: after each failure in a row, after twice as many waits without."""

    def __init__(self) -> None:
        self._failed = self._skip = 0

    def due(self) -> bool:
        if self._skip:
            self._skip -= 1
            return False
        return True

    def ended(self, well: bool) -> None:
        self._skip = self._failed = 0 if well else min(2 * self._failed + 1, MOST_SKIPPED)


class Spinner:
    """Decides how long to spin, from what became of it before.

    Args:
        clock: seconds.
        offer: lets others have the processor.
    """

    def __init__(
        self, clock: Callable[[], float] = time.perf_counter, offer: Callable[[], None] = os.sched_yield
    ) -> None:
        self._clock = clock
        self._offer = offer
        self._spinning, self._alone = Attempts(), Attempts()

    def look(self, look: Callable[[], Answer], limit_s: float = SPIN_S) -> Answer | None:
        """What `look` finds at once or soon; None if it finds nothing, or if it is not worth the attempt now."""
        if not self._spinning.due():
            return None
        if at_once := look():
            return at_once
        kept = self._keep_looking(look, min(limit_s, ALONE_S)) if self._alone.due() else None
        found = kept or self._offer_and_look(look, limit_s)
        self._spinning.ended(bool(found))
        return found

    def _keep_looking(self, look: Callable[[], Answer], limit_s: float) -> Answer | None:
        end = self._clock() + limit_s
        while not (found := look()) and self._clock() < end:
            pass
        self._alone.ended(bool(found))
        return found

    def _offer_and_look(self, look: Callable[[], Answer], limit_s: float) -> Answer | None:
        now = self._clock()
        end = now + limit_s
        while now < end:
            self._offer()
            before, now = now, self._clock()
            if (found := look()) or now - before > TAKEN_S:
                return found
        return None


@dataclass(order=True, slots=True)
class LoopTimer:
    time_s: float
    number: int
    callback: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        self.callback = None


class Loop:
    """Waits for sockets and timers and calls their handlers, one at a time.

    Args:
        clock: seconds; all times of timers are on it.
        spin_s: how long a wait spins at most; see `Spinner`.

    Example:
        >>> loop, fired = Loop(), []
        >>> _ = loop.call_later(0.0, lambda: fired.append("now"))
        >>> loop.run_until(lambda: fired, timeout_s=1.0), fired
        (True, ['now'])
        >>> loop.close()
    """

    def __init__(self, clock: Clock = time.monotonic, spin_s: float = SPIN_S) -> None:
        self.clock = clock
        self._spin_s = spin_s
        self._spinner = Spinner()
        self._epoll = select.epoll()
        self._look = partial(self._epoll.poll, 0, MOST_EVENTS)
        self._callbacks: dict[int, Callable[[], None]] = {}
        self._timers: list[LoopTimer] = []
        self._numbers = count()
        self._channels: dict[int, Channel] = {}
        self._listeners: set[socket.socket] = set()
        self._spares: list[BinaryIO] = []
        self._stopped = False
        self._handed_over: deque[Callable[[], None]] = deque()
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.setblocking(False)
        self._waker.setblocking(False)
        self._call_when_readable(self._wakeup, self._woken)

    def listen(
        self,
        listener: socket.socket,
        accepted: Callable[[socket.socket], None],
        crowded: Callable[[socket.socket, str], None] | None = None,
    ) -> None:
        """Have connections accepted; `crowded` gets one that cannot stay, as no descriptor is left, and says why."""

        def accept() -> None:
            try:
                sock, _address = listener.accept()
            except OSError as error:
                if error.errno in TOO_MANY:
                    self._turn_away(listener, crowded or ignore_all, reason_of(error))
                return  # otherwise it was gone again
            accepted(sock)

        self._spares.append(open(os.devnull, "rb", buffering=0))  # noqa: SIM115 - closed with the loop, or with it gone
        self._call_when_readable(listener, accept)
        self._listeners.add(listener)

    def add(self, channel: Channel, handler: ConnectionHandler) -> None:
        """Serve a channel until it ends; a second call changes its handler."""
        channel.handler = handler
        if channel.watcher is self:
            return
        channel.watcher = self
        self._channels[channel.socket.fileno()] = channel
        self._epoll.register(channel.socket, READ | (WRITE if channel.sending else 0))

    def release(self, channel: Channel) -> None:
        """Serve a channel no more, and leave it open for another loop."""
        self.closing(channel)
        channel.watcher = None

    def send_all(self, channels: Sequence[Channel], message: Any) -> None:
        """Send the same on all of these, each in front of what is sent on it next, at the latest after this turn."""
        frame = encode(message)
        for channel in channels:
            channel.hold(frame)

        def release() -> None:
            for channel in channels:
                channel.release()

        self.call_later(0.0, release)

    def call_at(self, time_s: float, callback: Callable[[], None]) -> LoopTimer:
        timer = LoopTimer(time_s, next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> LoopTimer:
        return self.call_at(self.clock() + delay_s, callback)

    def call_from_thread(self, callback: Callable[[], None]) -> None:
        """Have the loop's own thread call this soon; for all other threads."""
        self._handed_over.append(callback)
        self.wake()

    def step(self, timeout_s: float | None = None) -> None:
        for number, ready in self._wait(self._patience(timeout_s) if self._timers else timeout_s):
            channel = self._channels.get(number)  # none if what was served before it has closed it
            if channel is None:
                self._callbacks.get(number, ignore)()
            elif ready == READ:
                channel.readable()
            else:
                self._serve(channel, ready)
        while self._timers and self._timers[0].time_s <= self.clock():
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()

    def run(self) -> None:
        self._stopped = False
        while not self._stopped:
            self.step()

    def run_until(self, done: Callable[[], object], timeout_s: float) -> bool:
        deadline = self.clock() + timeout_s
        while not done():
            left = deadline - self.clock()
            if left <= 0:
                return False
            self.step(left)
        return True

    def stop(self) -> None:
        """Make `run` return; may be called from a signal handler."""
        self._stopped = True
        self.wake()

    def wake(self) -> None:
        """Make `step` return, from any thread."""
        with suppress(BlockingIOError):  # so many calls wait for it that one more would not be noticed
            self._waker.send(b"\0")

    def close(self) -> None:
        for channel in tuple(self._channels.values()):
            channel.close()
        for sock in (*self._listeners, self._wakeup, self._waker):
            sock.close()
        while self._spares:
            self._spares.pop().close()
        self._epoll.close()

    # -- what a channel tells (see `Watcher`) ------------------------------------------------------------------------

    def wants_write(self, channel: Channel) -> None:
        self._epoll.modify(channel.socket, READ | WRITE)

    def closing(self, channel: Channel) -> None:
        number = channel.socket.fileno()
        del self._channels[number]
        self._epoll.unregister(number)

    # -- details -----------------------------------------------------------------------------------------------------

    def _turn_away(self, listener: socket.socket, crowded: Callable[[socket.socket, str], None], why: str) -> None:
        """With a descriptor that was kept for this; else who calls would wait, and never know for what."""
        with suppress(OSError):  # another thread may be quicker
            if self._spares:
                self._spares.pop().close()
            with listener.accept()[0] as sock:
                crowded(sock, why)
            self._spares.append(open(os.devnull, "rb", buffering=0))  # noqa: SIM115

    def _call_when_readable(self, sock: socket.socket, callback: Callable[[], None]) -> None:
        self._callbacks[sock.fileno()] = callback
        self._epoll.register(sock, READ)

    def _wait(self, timeout_s: float | None) -> list[tuple[int, int]]:
        limit_s = self._spin_s if timeout_s is None else min(timeout_s, self._spin_s)
        if limit_s > 0 and (ready := self._spinner.look(self._look, limit_s)):
            return ready
        return self._epoll.poll(None if timeout_s is None else min(timeout_s, LONGEST_S), MOST_EVENTS)

    def _serve(self, channel: Channel, ready: int) -> None:
        if ready & ~READ:
            channel.flush()
            if not channel.sending:
                self._epoll.modify(channel.socket, READ)
        if ready & ~WRITE and not channel.closed:
            channel.readable()

    def _patience(self, timeout_s: float | None) -> float | None:
        due = max(0.0, self._timers[0].time_s - self.clock())
        return due if timeout_s is None else min(due, timeout_s)

    def _woken(self) -> None:
        self._wakeup.recv(4096)
        while self._handed_over:
            self._handed_over.popleft()()


class LoopThread(threading.Thread):
    """Steps a loop of its own until it is stopped. It is in no hurry: others compute meanwhile, so it never spins."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.loop = Loop(spin_s=0.0)
        self._stopping = False

    def run(self) -> None:
        while not self._stopping:
            self.loop.step()

    def end(self) -> None:
        """Make no further step; in another thread, once `loop` is woken."""
        self._stopping = True

    def stop(self) -> None:
        """In another thread: wait until this one has ended, if it was started, and close what it serves."""
        self.end()
        self.loop.wake()
        if self.ident is not None:
            self.join()
        self.loop.close()


def ignore_all(sock: socket.socket, why: str) -> None:
    """What becomes of a connection for which no descriptor is left where nobody asks."""


def ignore() -> None:
    """What becomes of an event whose socket was closed by what was served before it."""
