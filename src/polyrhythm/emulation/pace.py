"""Delays and deaths that are injected into a real worker, so that a few cores can play an uneven, faulty cluster."""

import os
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from math import inf
from typing import Protocol

import msgspec


class SlowTime(msgspec.Struct, frozen=True):
    """Steps that start from `start` to `stop` (exclusive), in seconds or in own steps, are slow."""

    start: float
    stop: float
    by_step: bool
    slowdown: float = 1.0
    extra_s: float = 0.0
    extra_latency_s: float = 0.0

    def holds(self, now_s: float, step: int) -> bool:
        return self.start <= (step if self.by_step else now_s) < self.stop


class Death(msgspec.Struct, frozen=True):
    """The worker sends itself a signal (9 kills it, 19 makes it hang) at a time, or as it starts one of its steps."""

    signal: int
    time_s: float = inf
    step: int | None = None


class Emulation(msgspec.Struct, frozen=True):
    """What one worker plays.

    Args:
        step_s: delay of each full mini-batch on top of its real computation, from the start again at the end.
        slow: when it is slower than that.
        deaths: when it is no more.
        bytes_per_s: rate of its link in each direction; with one it talks over TCP, not over shared memory.
        latency_s: how long each message between it and the servers is on the way, beside its bytes.
    """

    step_s: Sequence[float]
    slow: tuple[SlowTime, ...] = ()
    deaths: tuple[Death, ...] = ()
    bytes_per_s: float = inf
    latency_s: float = 0.0


class ServerClient(Protocol):
    """A worker's line to the servers; see `polyrhythm.runtime.worker.context.JobClient`."""

    def push(self, number: int) -> int | None: ...

    def pull(self, version: int) -> None: ...

    def swap(self, number: int) -> int: ...


class Pacer:
    """Holds a worker up at the start of each step; times count from its first step, which all workers make together.

    Args:
        emulation: what it plays.
        batch_size: samples of a full mini-batch; a smaller one takes proportionally less.
        clock, sleep: of this process.
        kill: sends this process a signal.

    Example:
        >>> slept = []
        >>> pacer = Pacer(Emulation([0.1], (SlowTime(1, inf, True, slowdown=3),)), 8, sleep=slept.append)
        >>> for samples in (8, 8, 4):
        ...     pacer.start_step(samples)
        >>> [round(delay_s, 3) for delay_s in slept]
        [0.1, 0.3, 0.15]
    """

    def __init__(
        self,
        emulation: Emulation,
        batch_size: int,
        clock: Callable[[], float] = time.perf_counter,
        sleep: Callable[[float], None] = time.sleep,
        kill: Callable[[int], None] = lambda number: os.kill(os.getpid(), number),
    ) -> None:
        self._emulation, self._batch_size = emulation, batch_size
        self._clock, self._sleep, self._kill = clock, sleep, kill
        self._delays = cycle(emulation.step_s)
        self._steps = 0
        self._started_s: float | None = None

    def start_step(self, samples: int) -> None:
        """Spend the time that a step of so many samples takes on the emulated device, or die in it."""
        now_s, step = self._now(), self._steps
        self._steps += 1
        delay_s = next(self._delays) * samples / self._batch_size
        for slow in self._emulation.slow:
            if slow.holds(now_s, step):
                delay_s = delay_s * slow.slowdown + slow.extra_s
        for death in self._emulation.deaths:
            if death.step == step or death.time_s < now_s + delay_s:
                self._sleep(max(0.0, min(death.time_s - now_s, delay_s)) if death.step is None else 0.0)
                self._kill(death.signal)
        self._sleep(delay_s)

    def delay(self, client: ServerClient) -> None:
        """Let each message between this worker and the servers be as late as its link makes it."""
        push, pull, swap = client.push, client.pull, client.swap

        def late_push(number: int) -> int | None:
            self._sleep(self._latency_s(self._steps - 1))
            return push(number)

        def late_pull(version: int) -> None:
            self._sleep(self._latency_s(self._steps))
            pull(version)

        def late_swap(number: int) -> int:
            self._sleep(self._latency_s(self._steps - 1))
            return swap(number)

        vars(client).update(push=late_push, pull=late_pull, swap=late_swap)

    def _latency_s(self, step: int) -> float:
        now_s = 0.0 if self._started_s is None else self._now()
        slow = (slow for slow in self._emulation.slow if slow.holds(now_s, step))
        return self._emulation.latency_s + sum(each.extra_latency_s for each in slow)

    def _now(self) -> float:
        if self._started_s is None:
            self._started_s = self._clock()
        return self._clock() - self._started_s
