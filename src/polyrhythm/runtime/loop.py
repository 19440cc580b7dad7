"""One readiness loop: listeners, channels and timers of one thread, so that nothing needs a lock."""

import heapq
import selectors
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from typing import TypeAlias

from polyrhythm.runtime.channel import Channel, Handler

Clock: TypeAlias = Callable[[], float]


@dataclass(order=True, slots=True)
class Timer:
    """A callback that is due at a time; see `Loop.call_at`."""

    time_s: float
    number: int
    callback: Callable[[], None] | None = field(compare=False)

    def cancel(self) -> None:
        """Do not call."""
        self.callback = None


class Loop:
    """Waits for sockets and timers and calls their handlers, one at a time.

    Args:
        clock: seconds; all times of timers are on it.

    Example:
        >>> loop, fired = Loop(), []
        >>> _ = loop.call_later(0.0, lambda: fired.append("now"))
        >>> loop.run_until(lambda: fired, timeout_s=1.0), fired
        (True, ['now'])
        >>> loop.close()
    """

    def __init__(self, clock: Clock = time.monotonic) -> None:
        self.clock = clock
        self._selector = selectors.DefaultSelector()
        self._timers: list[Timer] = []
        self._numbers = count()
        self._channels: set[Channel] = set()
        self._listeners: set[socket.socket] = set()
        self._stopped = False
        self._wakeup, self._waker = socket.socketpair()
        self._wakeup.setblocking(False)
        self._waker.setblocking(False)
        self._selector.register(self._wakeup, selectors.EVENT_READ, self._woken)

    def listen(self, listener: socket.socket, accepted: Callable[[socket.socket], None]) -> None:
        """Call `accepted` with every new connection of a listening socket."""

        def accept(_: int) -> None:
            try:
                sock, _address = listener.accept()
            except OSError:  # it was gone again, or no descriptor is left for it
                return
            accepted(sock)

        self._selector.register(listener, selectors.EVENT_READ, accept)
        self._listeners.add(listener)

    def add(self, channel: Channel, handler: Handler) -> None:
        """Serve a channel until it ends; a second call changes its handler."""
        channel.handler = handler
        if channel in self._channels:
            return
        channel.watcher = self
        self._channels.add(channel)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if channel.sending else 0)
        self._selector.register(channel.socket, events, lambda ready: self._serve(channel, ready))

    def call_at(self, time_s: float, callback: Callable[[], None]) -> Timer:
        """Call once when the clock reaches `time_s`."""
        timer = Timer(time_s, next(self._numbers), callback)
        heapq.heappush(self._timers, timer)
        return timer

    def call_later(self, delay_s: float, callback: Callable[[], None]) -> Timer:
        """Call once after `delay_s` seconds."""
        return self.call_at(self.clock() + delay_s, callback)

    def step(self, timeout_s: float | None = None) -> None:
        """Wait for the next events, at most so long, and handle them."""
        for key, ready in self._selector.select(self._patience(timeout_s)):
            key.data(ready)
        while self._timers and self._timers[0].time_s <= self.clock():
            timer = heapq.heappop(self._timers)
            if timer.callback is not None:
                timer.callback()

    def run(self) -> None:
        """Step until `stop`."""
        self._stopped = False
        while not self._stopped:
            self.step()

    def run_until(self, done: Callable[[], object], timeout_s: float) -> bool:
        """Step until `done`; False if that takes longer than the timeout."""
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
        self._waker.send(b"\0")

    def close(self) -> None:
        """Close every channel and listener, without telling handlers."""
        for channel in tuple(self._channels):
            channel.close()
        for sock in (*self._listeners, self._wakeup, self._waker):
            sock.close()
        self._selector.close()

    # -- what a channel tells (see `Watcher`) ------------------------------------------------------------------------

    def wants_write(self, channel: Channel) -> None:
        """Flush the channel when its peer can take bytes."""
        self._watch(channel, selectors.EVENT_READ | selectors.EVENT_WRITE)

    def closing(self, channel: Channel) -> None:
        """Serve the channel no more."""
        self._selector.unregister(channel.socket)
        self._channels.discard(channel)

    # -- details -----------------------------------------------------------------------------------------------------

    def _watch(self, channel: Channel, events: int) -> None:
        key = self._selector.get_key(channel.socket)
        if key.events != events:
            self._selector.modify(channel.socket, events, key.data)

    def _serve(self, channel: Channel, ready: int) -> None:
        if ready & selectors.EVENT_WRITE and not channel.closed:
            channel.flush()
            if not channel.sending:
                self._watch(channel, selectors.EVENT_READ)
        if ready & selectors.EVENT_READ and not channel.closed:
            channel.readable()

    def _patience(self, timeout_s: float | None) -> float | None:
        """How long to wait: until the next timer or the timeout."""
        if not self._timers:
            return timeout_s
        due = max(0.0, self._timers[0].time_s - self.clock())
        return due if timeout_s is None else min(due, timeout_s)

    def _woken(self, _: int) -> None:
        self._wakeup.recv(4096)
