"""Steps from data that the script reads itself, or draws."""

from collections.abc import Iterator
from typing import Any

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.runtime.script.data.loaders import Loaders
from polyrhythm.runtime.script.data.own_data import OwnReading
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.training.session import ScriptSession


class OwnSteps:
    """Follows what the script reads; see `ScriptSteps`.

    Args:
        session: of the training.
        loaders: of the script.
        reading: counts its mini-batches and its steps.
        run: the pass that the warm-up step was made from; None if it was made from no loader.
        handed: whether one rank reads a loader, and hands its mini-batches on.
    """

    own = True
    awaits_use = together = False

    def __init__(
        self, session: ScriptSession, loaders: Loaders, reading: OwnReading, run: Pass | None, handed: bool
    ) -> None:
        self._session, self._loaders, self._reading, self._run = session, loaders, reading, run
        self._handed = handed
        self.drawn = not reading.reads
        reading.before_end = self._finish_begun

    def begin(self) -> None:
        """The model is about to compute what a step may follow."""
        self._reading.begin()

    @property
    def inside(self) -> bool:
        return (self._run is not None and self._run.inside) or self._reading.inside

    @property
    def begun(self) -> int:
        return self._reading.data.steps_begun

    @property
    def reached(self) -> int:
        return self._reading.data.steps_reached

    def read(self, loader: DataLoader[Any]) -> Iterator[Any] | None:
        return self._reading.read(loader, self._loaders.read)

    def trains_on(self, loader: DataLoader[Any]) -> bool:
        return True

    def before_batch(self, run: Pass) -> None:
        if not self._handed:  # else no other rank comes here
            self._finish()
            self._reading.before_batch(run)

    def given(self, run: Pass) -> None:
        self._reading.given(run)

    def finished(self, run: Pass) -> None:
        self._reading.end_if_over()

    def forward(self, trains: bool, inputs: Any) -> None:
        if trains and self._run is None and self._session.stands_with(None):
            self._finish()
        if not torch.is_grad_enabled():
            self._finish_last()
        self._reading.forward(trains, inputs)

    def used(self) -> None: ...

    def unscale(self) -> None:
        if self._session.drop_skipped():
            self._reading.step()

    def before_step(self, optimizer: Optimizer) -> None:
        if self._session.stands_with(optimizer):
            self._finish()  # its second step with one mini-batch, or with none, begins the job's next one
        if not self._session.has_batch:
            self._reading.step()

    def after_step(self, optimizer: Optimizer, within: bool) -> None:
        if not self._session.joint:
            self._reading.stepped()
        elif not within and self._session.stands_with(None):
            self.returned()

    def returned(self) -> None:
        if self._reading.is_last:  # so nothing asks for a mini-batch, with which the step would be complete
            self._finish_begun()

    def pass_epoch(self) -> None:
        self._reading.data.pass_epoch()

    def leave_data(self) -> None:
        self._finish()
        self._reading.leave()

    def leave_loop(self) -> None:
        self._finish()
        self._reading.leave_loop()

    def is_open(self, outside: bool) -> bool:
        if self.drawn:  # all ranks with the same parameters have made the same steps, and need no end
            outside &= self._session.ends_early
        self._finish_last()
        return self._reading.is_open(outside)

    def end(self) -> None:
        self._finish()
        self._reading.data.end()

    def _finish_last(self) -> None:
        """The script computes without gradients or comes to a collective, perhaps at the end of its epoch."""
        if self._session.may_have_stepped and self._reading.is_last:
            self._finish_begun()

    def _finish_begun(self) -> None:
        if self._session.finish_step():
            self._reading.stepped()

    def _finish(self) -> None:
        """Several optimizers have made a step of the job."""
        if self._session.joint and self._session.has_batch:
            self._session.finish_step()
            self._reading.stepped()
