"""Learning-rate schedulers that a script steps with every optimizer step follow the job instead of one worker.

A fast worker makes more steps than its share, and in a script for a single process a step of all workers takes as many
mini-batches as there are workers. So a call of such a scheduler steps it as often as the script alone would have
stepped it since the last step of this worker: not at all, once, or several times. At the end of an epoch it is brought
to the same count on all workers, unless the script has ceased to step it. A scheduler that is made of others is one:
it steps its parts itself. A call with an argument cannot follow, since only the script knows what comes next.

While the ranks of a script make all steps together, each call is one step, as under torchrun: a script may make further
ones, such as one at the end of an epoch, or leave some out.
"""

import functools
import os
from collections import Counter
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

from torch.optim.lr_scheduler import ChainedScheduler, LRScheduler, ReduceLROnPlateau, SequentialLR

from polyrhythm.runtime.launch.restarts import asked_for
from polyrhythm.runtime.script.notices import script_line, tell
from polyrhythm.runtime.script.training.objections import APART, Objections

MADE_APART = (SequentialLR, ChainedScheduler, ReduceLROnPlateau)
"""Those of torch that are made without `LRScheduler.__init__`."""

MOST_BEYOND = 16
"""Steps by which workers apart may count beyond the end of a schedule; after more the script fails, as by itself."""


class Schedules:
    """All schedulers of a script.

    Args:
        apart: whether workers make steps of their own now, inside the loop.
        reached: steps that the script alone would have made by now, since the session began.
        together: whether every rank of a script with ranks has made each step so far.
        batch: the number of this worker's latest mini-batch, and whether the script is inside its loop over them.
        in_loop: whether the script is in the loop that makes its steps.
        objections: told what workers cannot follow that make steps of their own.
    """

    def __init__(
        self,
        apart: Callable[[], bool],
        reached: Callable[[], int],
        together: Callable[[], bool],
        batch: Callable[[], tuple[int, bool]],
        in_loop: Callable[[], bool],
        objections: Objections,
    ) -> None:
        self._apart, self._reached, self._together, self._batch = apart, reached, together, batch
        self._in_loop, self._objections = in_loop, objections
        self._known: WeakSet[LRScheduler] = WeakSet()
        self._calls: Counter[LRScheduler] = Counter()
        self._beyond: Counter[LRScheduler] = Counter()
        """Steps that were left out after the end of each that has one."""
        self._places: WeakKeyDictionary[LRScheduler, str] = WeakKeyDictionary()
        self._made: WeakKeyDictionary[LRScheduler, int] = WeakKeyDictionary()
        """Of those that follow the job: what was reached when they were last stepped."""
        self._at: WeakKeyDictionary[LRScheduler, int] = WeakKeyDictionary()
        """Of these: the mini-batch with which they were."""
        self._before = self._now = 0
        """What was reached with this worker's last step but one, and with its last."""
        self._were_apart = self._inside = False
        self.follows = False
        """Whether any of them follows the job."""
        self._told_restarts = False
        self.left_alone = False
        """Whether each worker makes the steps that the script counts, and so its schedules."""

    def begin_again(self) -> None:
        """A training is over: those of the next are yet to show what they do."""
        self._calls.clear()
        self._beyond.clear()
        self._made.clear()
        self._at.clear()
        self._before = self._now = 0
        self._were_apart = self.follows = self.left_alone = False

    def patch(self) -> None:
        for kind in (LRScheduler, *MADE_APART):
            self._patch_init(kind)

    def settle(self, stretched: bool, steps: int = 1) -> None:
        """The warm-up step is over: those that were stepped once with each step follow the job from now on.

        Args:
            stretched: whether a step of all workers takes several of the script's own.
            steps: that torch has made.
        """
        for scheduler in [each for each, calls in self._calls.items() if calls == steps]:
            self._made[scheduler] = 0
            self.follows = True
            if stretched:
                what = f"{type(scheduler).__name__}.step counts the mini-batches of all workers, as one process would"
                tell(what, self._places[scheduler])

    def meet(self, begun: int) -> None:
        """All workers are about to make a step together, by which the script alone would have made `begun`.

        After steps of their own the ranks stand at different places of a schedule.
        """
        for scheduler in self._followed:
            self._step_to(scheduler, begun, self._made[scheduler])

    @property
    def _followed(self) -> list[LRScheduler]:
        """Those that were stepped with this worker's last step."""
        return [scheduler for scheduler, made in self._made.items() if made >= self._now]

    def stepped(self) -> None:
        """This worker has made a step in the session; told only if they are to follow, see `follows`."""
        self._were_apart |= self._apart()
        self._advance(self._reached())

    def stay_apart(self) -> None:
        """At the end of this epoch this worker stands at another place than the job."""
        self._were_apart = True

    def follow(self) -> None:
        """An epoch ends; those that were stepped with this worker's last step are brought to its end."""
        end = self._reached()
        if self._were_apart or self._apart():
            for scheduler in self._followed:
                self._step_to(scheduler, end, self._made[scheduler])
        self._were_apart = False
        self._advance(end)

    def _advance(self, reached: int) -> None:
        if reached != self._now:
            self._before, self._now = self._now, reached

    def _patch_init(self, kind: Any) -> None:
        original = kind.__init__

        @functools.wraps(original)
        def init(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            self._run(functools.partial(original, scheduler, *args, **kwargs))  # which may step others
            self._patch_class(type(scheduler))
            self._known.add(scheduler)

        kind.__init__ = init

    def _patch_class(self, kind: type[LRScheduler]) -> None:
        owner: Any = next(base for base in kind.__mro__ if "step" in vars(base))
        if hasattr(owner.step, "polyrhythm"):
            return
        original = owner.step

        @functools.wraps(original)
        def step(scheduler: LRScheduler, *args: Any, **kwargs: Any) -> None:
            call = functools.partial(original, scheduler, *args, **kwargs)
            if self._inside or self.left_alone or scheduler not in self._known:
                call()
            elif all(value is None for value in (*args, *kwargs.values())):
                self._step(scheduler, call)
            else:
                self._step_by_argument(scheduler, call)

        step.polyrhythm = True  # type: ignore[attr-defined]
        owner.step = step

    def _step(self, scheduler: LRScheduler, call: Callable[[], None]) -> None:
        if scheduler in self._made:
            reached = self._reached()
            if self._together():
                self._note_batch(scheduler)
                self._run(call)
                self._made[scheduler] = reached
            else:
                self._follow_job(scheduler, call, reached)
            return
        self._heed(
            lambda who: (
                f"{type(scheduler).__name__}.step inside the step loop, but not with every step; {who} would each "
                "count another schedule. Step it once a step, or once an epoch"
            )
        )
        self._calls[scheduler] += 1
        self._places.setdefault(scheduler, script_line())
        self._run(call)

    def _follow_job(self, scheduler: LRScheduler, call: Callable[[], None], reached: int) -> None:
        last = self._before if reached == self._now else self._now  # a script may step it before its optimizer
        if self._note_batch(scheduler):
            self._step_to(scheduler, reached, max(self._made[scheduler], last))
            return
        _, inside = self._batch()
        for _ in range(reached - last if inside else 1):
            self._run(call)

    def _note_batch(self, scheduler: LRScheduler) -> bool:
        """Whether it is stepped for the first time with the mini-batch at hand."""
        batch, _ = self._batch()
        if self._at.get(scheduler) != batch:
            self._at[scheduler] = batch
            return True
        self._heed(
            lambda who: (
                f"{type(scheduler).__name__}.step inside the step loop, and more than once a step; {who} would each "
                "count another schedule. Step it once a step, or use bsp"
            )
        )
        return False

    def _step_by_argument(self, scheduler: LRScheduler, call: Callable[[], None]) -> None:
        each_step = "once a step without arguments, with its lengths in steps, or "
        remedy = "" if isinstance(scheduler, ReduceLROnPlateau) else each_step
        self._heed(
            lambda who: (
                f"{type(scheduler).__name__}.step with an argument inside the step loop; {who} would each give "
                f"another. Step it {remedy}once an epoch, after the loop, or use bsp"
            )
        )
        self._tell_restarts(scheduler)
        self._run(call)

    def _tell_restarts(self, scheduler: LRScheduler) -> None:
        """A worker that is started again passes the epochs that are over, and has no values of them."""
        if asked_for(os.environ) and not self._told_restarts:
            self._told_restarts = True
            tell(
                f"{type(scheduler).__name__}.step follows a value, which a worker that is started again "
                "(--max-restarts) does not have of the epochs that are over: its rate may be another one than that of "
                "the others; load model and scheduler from a snapshot of the script"
            )

    def _heed(self, problem: Callable[[str], str]) -> None:
        """Refuse in the loop what workers cannot follow that make steps of their own, if there are any."""
        if self._apart():
            raise self._objections.refusal(problem(APART))
        if self._in_loop():
            self._objections.foresee(problem)

    def _step_to(self, scheduler: LRScheduler, reached: int, start: int) -> None:
        for _ in range(start, reached):
            if self._were_apart and is_over(scheduler):
                self._beyond[scheduler] += 1
                if self._beyond[scheduler] <= MOST_BEYOND:
                    continue
            self._run(scheduler.step)
        self._made[scheduler] = max(reached, self._made[scheduler])

    def _run(self, call: Callable[[], None]) -> None:
        before, self._inside = self._inside, True
        try:
            call()
        finally:
            self._inside = before


def is_over(scheduler: LRScheduler) -> bool:
    """Whether a scheduler of a fixed length refuses another step; positions of workers apart are no exact counts.

    >>> import torch
    >>> from torch.optim.lr_scheduler import OneCycleLR
    >>> optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])
    >>> scheduler = OneCycleLR(optimizer, 0.1, total_steps=1)
    >>> is_over(scheduler), optimizer.step(), scheduler.step(), is_over(scheduler)
    (False, None, None, True)
    """
    total: int | None = getattr(scheduler, "total_steps", None)
    return total is not None and scheduler.last_epoch >= total
