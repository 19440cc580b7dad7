"""Steps that torch makes before the session: what they are made from shows how the session is to go on."""

from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.errors import GroupError
from polyrhythm.runtime.script.data.handed import READS_NOT
from polyrhythm.runtime.script.data.loaders import length_of
from polyrhythm.runtime.script.data.order import deals_out
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.training.script_facts import ScriptFacts
from polyrhythm.runtime.script.training.warm_up import WarmUpStep


class WarmUpSteps:
    """Follows the script until the session takes over; see `ScriptSteps`.

    Args:
        script: of this training.
        begin: the session takes over, with a pass after so many mini-batches of it.
    """

    own = drawn = together = False
    awaits_use = True
    begun = reached = 0

    def __init__(self, script: ScriptFacts, begin: Callable[[Pass, int], None]) -> None:
        self._script, self._begin = script, begin
        self.seen = WarmUpStep()
        self.run: Pass | None = None
        """That has given a mini-batch last."""
        self.passes: list[Pass] = []
        """Those that give mini-batches for the first step."""
        self.parts, self.deals, self.epoch = 1, True, 0
        """Mini-batches of a step, whether the job can deal them out, and epochs that are over."""
        self.optimizers: dict[Optimizer, None] = {}
        """Those that have stepped, in the order of their first steps."""
        self._scaled, self._skipped = False, 0
        """Whether a GradScaler has looked since the last mini-batch; mini-batches of steps that it left out."""
        self._stepped: set[Optimizer] = set()
        """Those that have since the last mini-batch."""

    @property
    def inside(self) -> bool:
        return self.run is not None and self.run.inside

    def reads(self) -> str:
        """What this rank reads: whether the job can deal it out, and how many mini-batches its loaders have."""
        if self.run is None or self.run.looking:
            return READS_NOT
        deals = deals_out(self.run.loader, self._script.distributed)
        return f"{'is dealt' if deals else 'reads'}: {[length_of(each.loader) for each in self.passes]}"

    def read(self, loader: DataLoader[Any]) -> Iterator[Any] | None:
        return self._script.dealing.warm_up_batches(loader, self._script.distributed, self._script.loaders.read)

    def trains_on(self, loader: DataLoader[Any]) -> bool:
        return True

    def before_batch(self, run: Pass) -> None:
        """Let the session take over after the first step, or let the script only look."""
        if run.steps:
            self.learn(run)
            self._begin(run, run.batches)
        elif self._script.loaders.trains_on(run.loader):
            self._begin(run, 0)
        elif run.looking and not run.used and run is self.run:
            if not self._script.dealing.gives_own(self._script.distributed):
                run.look(self._script.loaders.read)
            self.run = None

    def given(self, run: Pass) -> None:
        if self._scaled:
            self._skip(run)
        self._stepped.clear()
        self.run = run
        self.passes = [each for each in self.passes if each.unstepped and each.inside and each is not run]
        self.passes.append(run)
        self.seen.read()

    def leave_out_aside(self, thread: int) -> None:
        """What another thread than this one of the steps reads is the script's own: nothing says when it is used."""
        if self.run is not None and self.run.thread != thread:
            self.run = None
        self.passes = [each for each in self.passes if each.thread == thread]

    def _skip(self, run: Pass) -> None:
        """The GradScaler has found infinities, so that no step was made of what the script had before."""
        self._scaled, self._skipped = False, self._skipped + run.unstepped - 1
        run.unstepped = 1
        self.seen.skip()

    def finished(self, run: Pass) -> None:
        """An epoch that ends in the warm-up step is torch's own."""
        if run.steps:
            self.learn(run)
            self.epoch += 1

    def learn(self, run: Pass) -> None:
        """The steps were made from this pass: it is over the training loader."""
        self._script.loaders.training = run.loader
        for each in (run, *self.passes):
            each.find_readers()
        several = any(each.unstepped and each.inside for each in self.passes if each is not run)
        simple = not (self.seen.ahead or several or run.steps > run.batches * len(self.optimizers))
        simple &= not (run.repeated or (self._script.distributed and (run.counted or run.looked_up)))
        self.deals = simple and deals_out(run.loader, self._script.distributed)
        self.parts = (run.batches - self._skipped) // run.steps if self.deals else self.seen.parts

    def forward(self, trains: bool, inputs: Any) -> None:
        if trains:
            self.used()
        elif self.run is not None:
            self.run.looking = not self.run.used

    def used(self) -> None:
        if self.run is not None:
            self.run.used = True

    def unscale(self) -> None: ...

    def steps_again(self, optimizer: Optimizer) -> bool:
        """Whether it has stepped with the same mini-batch, or with none, and no other one is due."""
        return optimizer in self._stepped and not self._awaits_step()

    def calls_again(self, first: bool) -> bool:
        """Whether a model is called for another step whose data come from no loader; `first` is that of all."""
        outside = not self.inside or self.seen.ahead
        return outside and ((first and not self.seen.ahead) or not self._awaits_step())

    def _awaits_step(self) -> bool:
        others = (each for each in self._script.optimizers if each not in self.optimizers)
        return (self.run is None or self.seen.ahead) and self.seen.awaits(others)

    def before_step(self, optimizer: Optimizer) -> None:
        beside = bool(self._stepped) and optimizer not in self._stepped
        self._scaled = False
        self._reduce_rest()
        self.seen.step(optimizer, 0 if self.run is None else self.run.unstepped, beside)
        self._stepped.add(optimizer)

    def before_scaler(self) -> None:
        """A GradScaler is about to look at gradients."""
        self._scaled = True
        self._reduce_rest()

    def _reduce_rest(self) -> None:
        """Of models in evaluation mode."""
        for lane in self._script.lanes:
            if lane.is_unreduced:
                with suppress(GroupError):  # which `failure` tells the worker
                    lane.reduce_rest()

    def after_step(self, optimizer: Optimizer, within: bool) -> None:
        if self.run is not None:
            self.run.step()
        self.seen.stepped(optimizer)
        for each in self.passes:
            each.settle()

    def returned(self) -> None: ...

    def pass_epoch(self) -> None: ...

    def leave_data(self) -> None: ...

    def leave_loop(self) -> None: ...

    def is_open(self, outside: bool) -> bool:
        return False

    def end(self) -> None: ...
