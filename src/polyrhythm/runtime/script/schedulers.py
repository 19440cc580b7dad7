"""Learning-rate schedulers that a script steps with every optimizer step follow the job instead of one worker.

A fast worker makes more steps than its share. So such a scheduler is stepped as often as workers in synchronous mode
would have stepped it by the position that the job has reached; at the end of an epoch all workers have the same count.
"""

import functools
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch.optim.lr_scheduler import LRScheduler

from polyrhythm.runtime.script.notices import refuse


class Schedules:
    """All schedulers of a script.

    Args:
        apart: whether workers make steps of their own now, inside the loop.
        reached: steps that workers in synchronous mode would have made by now, since the session began.
    """

    def __init__(self, apart: Callable[[], bool], reached: Callable[[], int]) -> None:
        self._apart, self._reached = apart, reached
        self._known: WeakSet[LRScheduler] = WeakSet()
        self._calls: Counter[LRScheduler] = Counter()
        self._made: WeakKeyDictionary[LRScheduler, int] = WeakKeyDictionary()
        self._inside = False

    def patch(self) -> None:
        original = LRScheduler.__init__

        @functools.wraps(original)
        def init(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            original(scheduler, *args, **kwargs)
            self._patch_class(type(scheduler))
            self._known.add(scheduler)

        LRScheduler.__init__ = init  # type: ignore[method-assign, assignment]

    def settle(self) -> None:
        """The warm-up step is over: those that were stepped once with its step follow the job from now on."""
        for scheduler, calls in self._calls.items():
            if calls == 1:
                self._made[scheduler] = 0

    def follow(self) -> None:
        for scheduler in list(self._made):
            self._catch_up(scheduler)

    def _patch_class(self, kind: type[LRScheduler]) -> None:
        owner: Any = next(base for base in kind.__mro__ if "step" in vars(base))
        if hasattr(owner.step, "polyrhythm"):
            return
        original = owner.step

        @functools.wraps(original)
        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            call = functools.partial(original, scheduler, *args, **kwargs)
            if self._inside or scheduler not in self._known or args or kwargs:
                call()
            else:
                self._step(scheduler, call)

        step.polyrhythm = True  # type: ignore[attr-defined]
        owner.step = step

    def _step(self, scheduler: LRScheduler, call: Callable[[], None]) -> None:
        if scheduler in self._made:
            self._catch_up(scheduler)
            return
        if self._apart():
            raise refuse(
                f"{type(scheduler).__name__}.step inside the step loop, but not with every step; workers that make "
                "steps of their own would each count another schedule. Step it once a step, or once an epoch"
            )
        self._calls[scheduler] += 1
        self._run(call)

    def _catch_up(self, scheduler: LRScheduler) -> None:
        while self._made[scheduler] < self._reached():
            self._made[scheduler] += 1
            self._run(scheduler.step)

    def _run(self, call: Callable[[], None]) -> None:
        self._inside = True
        try:
            call()
        finally:
            self._inside = False
