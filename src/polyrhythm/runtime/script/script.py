"""What is known of the script that runs in this process, and when a session takes over from torch."""

import os
import sys
import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.runtime.script.children import Children
from polyrhythm.runtime.script.data.alone import keep_quiet
from polyrhythm.runtime.script.data.dealing import Dealing
from polyrhythm.runtime.script.data.loaders import Loaders
from polyrhythm.runtime.script.data.order import deals_out
from polyrhythm.runtime.script.data.own_data import OwnData, OwnReading
from polyrhythm.runtime.script.data.passes import Pass, ScriptLoader
from polyrhythm.runtime.script.data.step_loop import StepLoop
from polyrhythm.runtime.script.epochs import loop_number
from polyrhythm.runtime.script.notices import asked_by_us, refuse, tell
from polyrhythm.runtime.script.schedulers import Schedules
from polyrhythm.runtime.script.script_group import OwnValues
from polyrhythm.runtime.script.session import ScriptSession
from polyrhythm.runtime.script.session_start import MADE_LATE, NOT_FOUND, disjoint, open_session, own_reading, renew
from polyrhythm.runtime.script.warm_up import Arguments, WarmUpStep, check_step, run_closure
from polyrhythm.runtime.script.wrapper import Lane


class AdaptedScript:
    """Follows a script from its warm-up step into a session.

    Args:
        rank: of this worker.
        workers: ranks of the job.
    """

    def __init__(self, rank: int, workers: int) -> None:
        self.rank, self.workers = rank, workers
        self.dormant = False
        """Whether the script uses Polyrhythm itself, and nothing is to be adapted."""
        self.follows = False
        """Whether the script has come to train in a session, its own or ours."""
        self.distributed = False
        """Whether the script knows of its ranks; otherwise it was written for a single process."""
        self.lanes: list[Lane] = []
        self.trainings = 0  # that are over
        self.schedules = Schedules(self._apart, self._reached)
        self.children = Children()
        self._optimizers: weakref.WeakKeyDictionary[Optimizer, None] = weakref.WeakKeyDictionary()
        self.loaders = Loaders()
        self._dealing = Dealing(os.environ, rank, workers)
        self._begin_training()

    def _begin_training(self) -> None:
        self.session: ScriptSession | None = None
        self.warm_up = WarmUpStep()
        self.warm_up.again = self._called_again
        self._own_values = OwnValues()
        self._trained: dict[Optimizer, None] = {}
        self._stepping: Optimizer | None = None
        """Which of them is within its step; one that it wraps steps as a part of it."""
        self._stepped: set[Optimizer] = set()
        """Which of them have stepped since the last mini-batch."""
        self._run: Pass | None = None
        """The pass that has given a mini-batch last; in a session, that of the epoch under way."""
        self._loader: ScriptLoader | None = None
        self._own: OwnReading | None = None
        """In place of a loader, if the job does not deal out the data."""
        self._passes: list[Pass] = []
        """Those that give mini-batches for the warm-up step."""
        self._parts, self._opened_at = 1, 0
        self._deals = True
        self._unused = False  # whether the job's epoch has begun, but the script has not trained on any of it
        self._epoch = 0
        self._step_loop = StepLoop()

    # -- what the script makes -----------------------------------------------------------------------------------------

    def wrapped(self, lane: Lane) -> None:
        self.lanes.append(lane)
        lane.called = self._forward
        tell("DistributedDataParallel follows the policy")

    def made_optimizer(self, optimizer: Optimizer) -> None:
        if asked_by_us():
            return
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            raise refuse("ZeroRedundancyOptimizer shards the optimizer's state, but a policy needs whole replicas")
        self._optimizers[optimizer] = None
        if self.session is not None:
            self.session.later.add(optimizer)
            if self._own is not None and not self._own.reads:
                self._train_again()

    # -- what the script does ------------------------------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any]) -> Iterator[Any]:
        original = self.loaders.read
        if self.dormant or loader not in self.loaders or not torch.is_grad_enabled():
            return original(loader)
        inside = (self._run is not None and self._run.inside) or (self._own is not None and self._own.inside)
        if self.session is not None and not inside and self.session.is_over:
            self._train_again()
        if self._own is not None:
            return Pass(self, loader, self._own.read(loader, original)).iterator()
        if self.session is not None:
            trains = self.loaders.trains_on(loader)
            return Pass(self, loader, None).iterator() if trains else self.loaders.pass_over(loader)
        return Pass(self, loader, self._dealing.warm_up_batches(loader, self.distributed, original)).iterator()

    def backward(self, roots: Iterable[Tensor]) -> None:
        if (session := self.session) is not None:
            self._used()  # though the model may be in evaluation mode
            self._own_values.backward(roots)
            if session.deferred.fresh:
                session.deferred.backward(together=not session.apart)
        elif not self.dormant:
            self.warm_up.backward()

    def before_scaler(self, optimizer: Optimizer) -> None:
        """A GradScaler is about to look at gradients; it may find infinities, and then no step follows."""
        if self.session is None or optimizer not in self._trained:
            return
        if self._own is not None and self.session.drop_skipped():
            self._own.step()
        self.session.before_scaler(optimizer)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments | None:
        """The script has called an optimizer's step; with which arguments it is to go on, if with others."""
        if self.dormant or self._stepping not in (None, optimizer) or not self._adopt(optimizer):
            return None
        self._step_loop.stepped(sys._getframe(1))
        instead = run_closure(optimizer, args, kwargs) if kwargs or len(args) > 1 else None
        self._stepping = optimizer
        self._used()
        if optimizer in self._stepped and not self._awaits_step():
            self._begin_drawn()  # its second step with the same mini-batch, or no model was called in training mode
        if self.session is None:
            beside = bool(self._stepped) and optimizer not in self._stepped
            self.warm_up.step(optimizer, 0 if self._run is None else self._run.unstepped, beside)
            self._stepped.add(optimizer)
        else:
            self._before_step(self.session, optimizer)
        return instead

    def _before_step(self, session: ScriptSession, optimizer: Optimizer) -> None:
        check_step(optimizer)
        if self._own is not None and session.stands_with(optimizer):
            self._finish_own(session)  # its second step with one mini-batch, or with none, begins the job's next one
        if self._own is None:
            assert self._run is not None, "a session has begun with a pass"
            session.check_place(self._run, self._parts, self.loaders.other)
        elif not session.has_batch:
            self._own.step()
        self._own_values.step(session.parameters)
        if self.schedules.follows and not session.apart:
            self.schedules.meet(self._source.steps_begun - self._opened_at)

    def _adopt(self, optimizer: Optimizer) -> bool:
        """Whether this is one of the script's optimizers, which perhaps steps for the first time."""
        if optimizer in self._trained:
            return True
        if optimizer not in self._optimizers:
            return False
        if self.session is not None:
            raise refuse(MADE_LATE if optimizer in self.session.later else NOT_FOUND)
        self._trained[optimizer] = None
        return True

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if optimizer is not self._stepping:
            return
        self._stepping = None
        if self._own is None and self._run is not None:
            self._run.step()
        if self.session is None:
            self.warm_up.stepped(optimizer)
        else:
            self._own_values.stepped()
            self.schedules.stepped()
            if self._own is not None and not self.session.joint:
                self._own.stepped()
        for each in self._passes:
            each.settle()

    def collective(self, name: str, outputs: list[Tensor]) -> bool:
        """Whether this worker makes a collective by itself, as the others are elsewhere in their loops."""
        if self.session is None or not self._inside() or self.session.aligned:
            return False
        when = f"under {self.session.policy}" if self.session.apart else "after steps of workers of their own"
        self._own_values.check(name, outputs, when, self.session.parameters)
        return True

    def close(self, kind: type[BaseException] | None = None, error: BaseException | None = None) -> None:
        session, self.session, self.dormant = self.session, None, True
        if session is not None:
            if error is None:
                self._end_own(session)
            session.__exit__(kind, error, None)

    def _train_again(self) -> None:
        """The script begins another training: the session ends, and its next first step is a warm-up step, too."""
        session, self.session = self.session, None
        assert session is not None, "it is over"
        self._end_own(session)
        session.train_again()
        self.trainings, self.dormant = self.trainings + 1, False
        tell(f"training number {self.trainings + 1} begins, as a job of its own")
        renew(self.lanes, self._optimizers)
        self.schedules.begin_again()
        self.loaders.begin_again()
        self._begin_training()

    def check_end(self) -> None:
        """The script has come to its end by itself."""
        if not self.dormant or self.follows:
            self.children.check(trained=self.follows or bool(self.warm_up.stepped_at))
        if not self.follows or not (self.dormant or self.session is not None):
            self.warm_up.check_end(self.follows)

    # -- passes (see `Listener`) ---------------------------------------------------------------------------------------

    def before_batch(self, run: Pass) -> None:
        """Let the session take over after the warm-up step, or begin an epoch, or let the script only look."""
        if self.dormant:
            return
        self._stepping = None
        if self._own is not None:
            if self.session is not None:
                self._finish_own(self.session)
            return
        if self.session is not None and run is self._run:
            self.session.finish_step()
        if self.session is None and run.steps:
            self._begin(run, run.batches)
        elif self.session is None and self.loaders.trains_on(run.loader):
            self._begin(run, 0)
        elif run.source is None and self._run is not None and self._run.trains and not self._unused:
            run.look(self.loaders.read)
        elif run.source is None:
            self._start_epoch(run)
        elif run.looking and not run.used and run is self._run:
            run.look(self.loaders.read)
            self._run = None  # the job's mini-batches wait for a pass that trains on them

    def given(self, run: Pass) -> None:
        self._stepped.clear()
        if self._own is not None or run.by_generator:
            self._step_loop.reads(sys._getframe(1))
        if self.session is None:
            self._run = run
            self._passes = [each for each in self._passes if each.unstepped and each.inside and each is not run]
            self._passes.append(run)
            self.warm_up.read()
        elif self._own is not None:
            self._own.given(run)

    def _finish_own(self, session: ScriptSession) -> None:
        """Several optimizers have made a step of the job."""
        if self._own is not None and session.joint and session.has_batch:
            session.finish_step()
            self._own.stepped()

    def _end_own(self, session: ScriptSession) -> None:
        if self._own is not None:
            self._finish_own(session)
            self._own.data.end()

    def finished(self, run: Pass) -> None:
        """An epoch that ends in the warm-up step is torch's own."""
        if self.session is None and run.steps:
            self._learn(run)
            self._epoch += 1
        self._unused &= run is not self._run
        if self._own is not None:
            self._own.end_if_over()

    def _start_epoch(self, run: Pass) -> None:
        """Begin an epoch of the job, or begin again one that the script has only looked at."""
        assert self._loader is not None, "a session has a loader"
        assert self.session is not None, "it is its epoch"
        self.session.drop_step()
        self._loader.renew(run.loader)
        run.source = self._loader.again() if self._unused else iter(self._loader)
        self._run, self._unused = run, True

    def _forward(self, trains: bool, inputs: Any) -> None:
        self._step_loop.computes |= trains
        if self._own is not None:
            if trains and self._run is None and self.session is not None and self.session.stands_with(None):
                self._finish_own(self.session)
            self._own.forward(trains, inputs)
        elif not trains and self._run is not None:
            self._run.looking = not self._run.used
        elif trains:
            self._used()

    def _used(self) -> None:
        run = self._run
        if run is None or (run.used and not self._unused):
            return
        run.used, self._unused = True, False
        if self._loader is not None:
            self._loader.used()

    def _apart(self) -> bool:
        """Whether it is inside its loop over an epoch, where workers make steps of their own."""
        return self.session is not None and self.session.apart and self._inside()

    def _inside(self) -> bool:  # and if it has left its loop early, end its epoch
        outside = self._step_loop.left(sys._getframe(1))
        if self._own is not None or self._run is None:
            return self._own is not None and self._own.is_open(outside)
        left = self._run.left or (outside and self._run.by_generator)
        if left and self._run.used and self._loader is not None and self.session is not None and self.session.differs:
            self._loader.end_early()
        return self._run.inside and not left

    def _reached(self) -> int:
        """Steps since the session began that workers in synchronous mode would have made by now."""
        return self._source.steps_reached - self._opened_at

    @property
    def _source(self) -> ScriptLoader | OwnData:
        source = self._own.data if self._own else self._loader
        assert source is not None, "a session has data"
        return source

    # -- from the warm-up step to a session ---------------------------------------------------------------------------

    def _learn(self, run: Pass) -> None:
        """The steps were made from this pass: it is over the training loader."""
        self.loaders.training = run.loader
        several = any(each.unstepped and each.inside for each in self._passes if each is not run)
        simple = not (self.warm_up.ahead or several or run.steps > run.batches * len(self._trained))
        simple &= not (self.distributed and (run.counted or run.looked_up))
        self._deals = simple and deals_out(run.loader, self.distributed)
        self._parts = run.batches // run.steps if self._deals else self.warm_up.parts

    def _begin(self, run: Pass, batches: int) -> None:
        """Start the session, `batches` of every worker after the start of the epoch."""
        if batches:
            self._learn(run)
        if not self._deals:
            self._begin_own(run)
            return
        place = self.loaders.place(run.loader)
        self._dealing.check_begin(batches, place)
        self.session = self._open_session()
        first, counted_from = self.session.place_of(self._epoch, loop_number())
        where = {"first_epoch": first, "counted_from": counted_from}
        self._loader = self.session.take_over(run, self._dealing, place, batches, self.distributed, self._parts, where)
        tell("the training loader's samples are dealt out by the job", place)
        self.session.at_end = self.schedules.follow
        self._opened_at = self._loader.steps_to(first, batches // self._parts)
        self.schedules.settle(stretched=self.workers > 1 and not self.distributed)
        self._start_epoch(run)

    def _open_session(self) -> ScriptSession:
        optimizers = disjoint(self._trained, self._optimizers, self.warm_up, loose=not self.lanes)
        self._trained = dict.fromkeys(optimizers)
        session = open_session(optimizers, self.lanes, self.warm_up, self._forward, self.trainings)
        if not (self.distributed or self.follows):
            keep_quiet(self.rank)
        self.follows = True
        return session

    def _called_again(self, first: bool) -> None:
        """A model is called for another step: if its data come from no loader, the session takes over."""
        outside = self._run is None or not self._run.inside or self.warm_up.ahead
        if outside and (first or not self._awaits_step()):
            self._begin_drawn()  # before what this pass computes: an epoch may begin with other values

    def _awaits_step(self) -> bool:
        return self._run is None and self.warm_up.awaits(o for o in self._optimizers if o not in self._trained)

    def _begin_drawn(self) -> None:
        if self.session is None and not self.dormant:
            self._parts = self.warm_up.parts
            self._begin_own(self._run).begin()

    def _begin_own(self, run: Pass | None) -> OwnReading:
        """Start the session of a script whose data the job does not deal out."""
        place = self.warm_up.stepped_at if run is None else self.loaders.place(run.loader)
        self._dealing.check_own(place)
        self.session = self._open_session()
        split = 1 if self.distributed or run is None else self.workers
        counts = {"batch_size": self.warm_up.samples, "workers": self.workers, "stretch": split}
        self._own = own_reading(self.session, run, place, self._epoch, counts, self._parts, self.rank)
        if run is not None:
            for each in self._passes:
                each.steps = run.steps
            self._own.take_over([run, *self._passes], self.loaders)
        self.schedules.left_alone = split == 1
        self.session.at_end = self.schedules.follow
        self.schedules.settle(stretched=split > 1)
        return self._own
