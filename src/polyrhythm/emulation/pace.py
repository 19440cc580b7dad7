"""Delays and deaths that are injected into a real worker, so that a few cores can play an uneven, faulty cluster."""

import os
import time
from collections.abc import Callable, Sequence
from itertools import cycle
from math import inf

import msgspec


class SlowTime(msgspec.Struct, frozen=True):
    """Steps that start from `start` to `stop` (exclusive), in seconds or in own steps, are slow."""

    start: float
    stop: float
    by_step: bool
    slowdown: float = 1.0
    extra_s: float = 0.0

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
    """

    step_s: Sequence[float]
    slow: tuple[SlowTime, ...] = ()
    deaths: tuple[Death, ...] = ()
    bytes_per_s: float = inf


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

    def _now(self) -> float:
        if self._started_s is None:
            self._started_s = self._clock()
        return self._clock() - self._started_s
