"""One training of a script, from its warm-up step to the end of its session."""

import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from types import FrameType
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.core.placement import apart_after, policies_of
from polyrhythm.errors import GroupError
from polyrhythm.runtime.script.data.handed import HandedData
from polyrhythm.runtime.script.data.pass_ends import PassEnds
from polyrhythm.runtime.script.data.passes import Pass, PassListener
from polyrhythm.runtime.script.data.step_loop import StepLoop
from polyrhythm.runtime.script.notices import refuse
from polyrhythm.runtime.script.training.own_steps import OwnSteps
from polyrhythm.runtime.script.training.own_values import OwnValues
from polyrhythm.runtime.script.training.script_facts import ScriptFacts
from polyrhythm.runtime.script.training.script_steps import ScriptSteps
from polyrhythm.runtime.script.training.session import ScriptSession
from polyrhythm.runtime.script.training.session_start import (
    COPIED_OPTIMIZER,
    JOINED,
    RETURNS,
    begin_dealt,
    begin_own,
    open_session,
    why_not,
)
from polyrhythm.runtime.script.training.warm_up import Arguments, check_step, run_closure
from polyrhythm.runtime.script.training.warm_up_steps import WarmUpSteps


class Training:
    """Hears what the script does, and has its `ScriptSteps` follow.

    Args:
        script: whose training it is.
        listener: told of passes, and tells this training.
        called: told of the forward passes of the model, and tells this training.
    """

    def __init__(self, script: ScriptFacts, listener: PassListener, called: Callable[[bool, Any], None]) -> None:
        self._script, self._listener, self._called = script, listener, called
        self.session: ScriptSession | None = None
        self.warm_up = WarmUpSteps(script, self._begin)
        self.warm_up.seen.again = self._called_again
        self._steps: ScriptSteps = self.warm_up
        self._step_loop = StepLoop()
        self._pass_ends = PassEnds()
        self._own_values = OwnValues()
        self._handed = HandedData(script.trainings)
        self._batches = 0
        """That the script was given."""
        self._thread = 0
        """In which the script makes its steps."""
        self._stepping: Optimizer | None = None
        """Which optimizer is within its step; one that it wraps steps as a part of it."""
        self._stepped_within = False
        """Whether one has stepped within a wrapper's forward, as in Lightning's manual optimization."""

    # -- whether another one begins ------------------------------------------------------------------------------------

    @property
    def draws(self) -> bool:
        """Whether its session makes steps from no loader, so that only another optimizer shows another training."""
        return self.session is not None and self._steps.drawn

    @property
    def is_over(self) -> bool:
        """Whether the script, which is about to read a loader, begins another training by that."""
        return self.session is not None and not self._steps.inside and self.session.is_over

    # -- passes --------------------------------------------------------------------------------------------------------

    def read(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if not self._steps.trains_on(loader):
            return self._script.loaders.pass_over(loader)
        frame = sys._getframe(1)
        self._leave_loop(frame)
        run = Pass(self._listener, loader, self._steps.read(loader))
        run.goes_on = self._pass_ends.repeats(frame)
        return run.iterator()

    def before_batch(self, run: Pass) -> None:
        if self.aside:
            return
        self._stepping = None
        self._steps.before_batch(run)

    def given(self, run: Pass) -> None:
        if self.aside:
            return
        self._batches += 1
        if self._steps.own or run.by_generator:
            self._step_loop.reads(sys._getframe(1))
        if self._pass_ends.looks:
            self._pass_ends.reads(sys._getframe(1))
        self._steps.given(run)

    def finished(self, run: Pass) -> None:
        if not self.aside:
            self._steps.finished(run)

    # -- from the model to a step --------------------------------------------------------------------------------------

    def forward(self, trains: bool, inputs: Any) -> None:
        if trains and self._steps.drawn:
            frame = sys._getframe(1)
            self._step_loop.computes |= not self._step_loop.left(frame)
            self._step_loop.reads(frame)
        else:
            self._step_loop.computes |= trains
        if not trains and self._handed.left(sys._getframe(1)):
            self._steps.leave_data()
        if not trains:
            self._leave_loop(sys._getframe(1))
        self._steps.forward(trains, inputs)

    def returned(self) -> None:
        """A wrapper's forward is over."""
        if self._stepped_within:
            self._stepped_within = False
            self._steps.returned()

    def backward(self, roots: Iterable[Tensor]) -> None:
        if (session := self.session) is None:
            self.warm_up.seen.backward()
            return
        if self._steps.awaits_use:
            self._steps.used()  # though the model may be in evaluation mode
        if self._own_values.followed is not None:
            self._own_values.followed.backward(roots)
        if session.deferred.fresh:
            session.deferred.backward(together=not session.apart)

    def differentiated(self) -> None:
        """A backward pass is over: gradients of models in evaluation mode are exchanged, as others' are within it."""
        for lane in self._script.lanes:
            if lane.evaluates and lane.last and lane.reducing and lane.is_unreduced:
                with suppress(GroupError):  # which `failure` tells the worker
                    lane.reduce_rest()

    def before_scaler(self, optimizer: Optimizer) -> None:
        """A GradScaler is about to look at gradients; it may find infinities, and then no step follows."""
        if self.session is None:
            self.warm_up.before_scaler()
        elif optimizer in self.warm_up.optimizers:
            self._steps.unscale()
            self.session.before_scaler(optimizer)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """The script has called an optimizer's step; with which arguments it is to go on, if with others."""
        if self._stepping not in (None, optimizer):
            return None
        if optimizer not in self.warm_up.optimizers and not self._adopt(optimizer):
            return None
        self._thread = threading.get_ident()
        if self.session is None:
            self.warm_up.leave_out_aside(self._thread)
        self._step_loop.stepped(sys._getframe(1))
        self._handed.stepped(sys._getframe(1), self.warm_up.reads)
        if self._pass_ends.looks:
            self._pass_ends.stepped(sys._getframe(1))
        instead = run_closure(optimizer, args, kwargs) if kwargs or len(args) > 1 else None
        self._stepping = optimizer
        if self._steps.awaits_use:
            self._steps.used()
        if self.session is None and self.warm_up.steps_again(optimizer):
            self._begin_drawn()
        if self.session is None:
            self.warm_up.before_step(optimizer)
        else:
            self._before_step(self.session, optimizer)
        return instead

    def _before_step(self, session: ScriptSession, optimizer: Optimizer) -> None:
        check_step(optimizer)
        if self._steps.own:
            self._check_joined()
        self._steps.before_step(optimizer)
        if self._own_values.followed is not None:
            self._own_values.followed.step(session.parameters)
        if self._script.schedules.follows and not session.apart:
            self._script.schedules.meet(self._steps.begun)

    def _adopt(self, optimizer: Optimizer) -> bool:
        """Whether this, which has not stepped before, is one of the script's optimizers."""
        if self.session is not None and optimizer in self._script.copied:
            raise refuse(COPIED_OPTIMIZER)
        if optimizer not in self._script.optimizers:
            return False
        if self.session is not None:
            if optimizer in self._script.trained_before:
                raise refuse(RETURNS)
            raise refuse(why_not(optimizer, self.session))
        self.warm_up.optimizers[optimizer] = None
        return True

    def after_step(self, optimizer: Optimizer) -> None:
        if optimizer is not self._stepping:
            return
        self._stepping = None
        if self._own_values.followed is not None:
            self._own_values.stepped(self._own_values.followed)
        if self.session is not None and self._script.schedules.follows:
            self._script.schedules.stepped()
        within = False
        for lane in self._script.lanes:
            within |= lane.inside
        self._stepped_within |= within
        self._steps.after_step(optimizer, within)

    # -- where the workers are -----------------------------------------------------------------------------------------

    def collective(self, name: str, outputs: list[Tensor], source: int | None) -> bool:
        """Whether this worker makes a collective by itself, as the others are elsewhere in their loops."""
        if self.aside:
            return False
        self._leave_loop(sys._getframe(1))
        is_open = self.session is not None and self._is_open()
        self._handed.collective(source, sys._getframe(1))
        self._pass_ends.collective(sys._getframe(1))
        if self.session is None or not is_open:
            self._own_values.left_loop()
            return False
        if self.session.aligned:
            if not self._step_loop.left(sys._getframe(1)):
                self._own_values.foresee(name, outputs, self.session.parameters, self._script.objections)
            return False
        under = f"under {self.session.policy}, whose workers make steps of their own"
        when = under if self.session.apart else "after steps of workers of their own"
        self._own_values.check(name, outputs, when, self.session.parameters, self._script.objections)
        return True

    @property
    def aside(self) -> bool:
        """Whether another thread of the script runs this than its steps, as one that writes a checkpoint meanwhile.

        Threads in which torch computes gradients belong to the steps.
        """
        if self._thread in (0, threading.get_ident()):
            return False
        return not isinstance(threading.current_thread(), threading._DummyThread)

    def asks_state(self) -> None:
        """The script asks for a model's parameters, perhaps those of the end of its epoch."""
        self._leave_loop(sys._getframe(1))

    def _leave_loop(self, frame: FrameType) -> None:
        if self._steps.own and self._pass_ends.left(frame):
            self._steps.leave_loop()

    def _outlives(self, run: Pass) -> bool:
        """Whether the script may go on with its loop when a pass is over: all ranks come to the loop's end together.

        Otherwise who has no data left waits at once, so that all have equal parameters wherever the script uses them.
        """
        session = self.session
        if session is None or not session.aligned or not (run.counted or run.by_generator):
            return False
        if not self._script.distributed or self._handed.even:
            return False
        if self._pass_ends.meets or run.goes_on:
            return True
        return not (session.differs or session.joint or session.asked.counts_shares)

    @property
    def is_handed_data(self) -> bool:
        """Whether one rank is known to read the mini-batches for all."""
        return self.session is not None and self._handed.agreed

    def pass_epoch_if_awaited(self) -> None:
        """The script waits in a collective of all ranks; others may make another epoch before they come to it."""
        if self.session is not None and self.session.awaited:
            self._script.schedules.stay_apart()  # until the end of this epoch
            self._steps.pass_epoch()
            self.session.collective()  # in which the script waits also after this epoch

    @property
    def apart(self) -> bool:
        """Whether it is inside its loop over an epoch, where workers make steps of their own."""
        return self.session is not None and self.session.apart and self._is_open()

    @property
    def in_loop(self) -> bool:
        """Whether it is inside that loop, wherever the workers are."""
        return self.session is not None and self._steps.inside and not self._step_loop.left(sys._getframe(1))

    @property
    def later_apart(self) -> bool:
        """Whether workers make steps of their own in a later part of the policy, and no other comes in its place."""
        session = self.session
        return session is not None and not session.gives_way and apart_after(session.asked, session.policy)

    @property
    def switched_to(self) -> str:
        """The policy in force, if the job has not begun with it or a sequence of which it is a part."""
        if self.session is None:
            return ""
        asked, policy = self.session.asked, self.session.policy
        begun = {asked.spec, *(each.spec for each in policies_of(asked))}
        return "" if policy in begun else policy

    @property
    def reached(self) -> int:
        """Steps since the session began that workers in synchronous mode would have made by now."""
        return self._steps.reached

    @property
    def together(self) -> bool:
        """Whether every rank has made each step so far, so that what the script counts is right by itself."""
        return self.session is not None and self.session.aligned and self._steps.together

    @property
    def batch(self) -> tuple[int, bool]:
        """The number of the latest mini-batch, and whether the script is inside its loop over them."""
        return self._batches, self._steps.inside

    def _is_open(self) -> bool:  # and if it has left its loop early, its epoch ends
        frame = sys._getframe(1)
        if self._handed.left(frame):
            self._steps.leave_data()
        left = self._step_loop.left(frame)
        if left and self.session is not None and not self.session.aligned:
            self._script.schedules.stay_apart()
        return self._steps.is_open(left)

    # -- from the warm-up step to the end ------------------------------------------------------------------------------

    def _called_again(self, first: bool) -> None:
        """A model is called for another step: if its data come from no loader, the session takes over."""
        if self.session is None and not self._script.dormant and self.warm_up.calls_again(first):
            self._begin_drawn()  # before what this pass computes: an epoch may begin with other values

    def _begin_drawn(self) -> None:
        self.warm_up.parts = self.warm_up.seen.parts
        self._steps = steps = self._begin_own(self.warm_up.run)
        steps.begin()

    def _begin(self, run: Pass, batches: int) -> None:
        """The session takes over, `batches` of every worker after the start of the epoch."""
        deals = self.warm_up.deals and not (self._handed.agreed or self._handed.differs)
        if deals and (not (run.compared and self._script.distributed) or self._must_deal):
            self._steps = begin_dealt(self._open, self._script, self.warm_up, run, batches)
        else:
            self._steps = self._begin_own(run)

    @property
    def _must_deal(self) -> bool:
        """Whether the job refuses data that it does not deal out itself."""
        return self._script.dealing.is_asked or self._open(True).asked.traits.shares

    def _begin_own(self, run: Pass | None) -> OwnSteps:
        """The script reads its data itself, after this pass; if only some ranks read, an epoch ends with the loop."""
        read = None if self._handed.agreed or self._handed.some_only else run
        self._check_joined()
        return begin_own(self._open, self._script, self.warm_up, read, self._handed, self._outlives)

    def _check_joined(self) -> None:
        """Ranks that read their own data within `join()` must have equally many mini-batches."""
        places = [lane.joined for lane in self._script.lanes if lane.joined]
        if places and not self._handed.agreed and (self.warm_up.run is None or not self._handed.even):
            raise refuse(JOINED, places[0])

    def _open(self, measured: bool) -> ScriptSession:
        if self.session is not None:
            return self.session
        self.session = open_session(self._script, self.warm_up, self._called, measured)
        self.session.computes = lambda: self._step_loop.computes
        self._script.follows = True
        self.session.watch(self._script.stalls)
        return self.session

    def leave(self) -> ScriptSession | None:
        """The script has come to its end, or to another training: what is left of the session."""
        session, self.session = self.session, None
        return session

    def end(self) -> None:
        self._own_values.left_loop()
        self._steps.end()
