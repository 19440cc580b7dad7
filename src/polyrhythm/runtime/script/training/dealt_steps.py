"""Steps from mini-batches that the job deals out in place of the script's own."""

from collections.abc import Iterator
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.runtime.script.data.loaders import Loaders
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.data.script_loader import ScriptLoader
from polyrhythm.runtime.script.training.session import ScriptSession


class DealtSteps:
    """Follows passes over the training loader; see `ScriptSteps`.

    Args:
        session: of the training.
        loaders: of the script.
        loader: gives the job's mini-batches.
        parts: mini-batches of a step.
        opened_at: steps that the script alone would have made before the session.
    """

    own = drawn = False

    def __init__(
        self, session: ScriptSession, loaders: Loaders, loader: ScriptLoader, parts: int, opened_at: int
    ) -> None:
        self._session, self._loaders, self._loader = session, loaders, loader
        self._parts, self._opened_at = parts, opened_at
        self._run: Pass | None = None
        """That of the epoch under way."""
        self._unused = False  # whether the job's epoch has begun, but the script has not trained on any of it
        self.awaits_use = False

    @property
    def inside(self) -> bool:
        return self._run is not None and self._run.inside

    @property
    def begun(self) -> int:
        return self._loader.steps_begun - self._opened_at

    @property
    def reached(self) -> int:
        return self._loader.steps_reached - self._opened_at

    @property
    def together(self) -> bool:
        return self._loader.all_together

    def read(self, loader: DataLoader[Any]) -> Iterator[Any] | None:
        return None

    def trains_on(self, loader: DataLoader[Any]) -> bool:
        return self._loaders.trains_on(loader)

    def before_batch(self, run: Pass) -> None:
        """Begin an epoch, or let the script only look."""
        if run is self._run:
            self._session.finish_step()
        if run.source is None and self._run is not None and self._run.trains and not self._unused:
            run.look(self._loaders.read)
        elif run.source is None:
            self.start_epoch(run)
        elif run.looking and not run.used and run is self._run:
            run.look(self._loaders.read)
            self._run = None  # the job's mini-batches wait for a pass that trains on them

    def given(self, run: Pass) -> None: ...

    def finished(self, run: Pass) -> None:
        self._unused &= run is not self._run

    def start_epoch(self, run: Pass) -> None:
        """Begin an epoch of the job, or begin again one that the script has only looked at."""
        self._session.finish_step()  # of the epoch before, whose loop may count its mini-batches or be left early
        self._loader.renew(run.loader, run.start)
        run.source = self._loader.again() if self._unused else iter(self._loader)
        self._run, self._unused = run, True
        self.awaits_use = True

    def forward(self, trains: bool, inputs: Any) -> None:
        if trains:
            if self.awaits_use:
                self.used()
        elif self._run is not None:
            self._run.looking = not self._run.used

    def used(self) -> None:
        run = self._run
        if run is None or (run.used and not self._unused):
            return
        run.used, self._unused, self.awaits_use = True, False, False
        self._loader.used()

    def unscale(self) -> None:
        self._loader.stepped()  # a step that a GradScaler leaves out counts for schedules

    def before_step(self, optimizer: Optimizer) -> None:
        assert self._run is not None, "a session has begun with a pass"
        self._session.check_place(self._run, self._parts, self._loaders.other)

    def after_step(self, optimizer: Optimizer, within: bool) -> None:
        if self._run is not None:
            self._run.step()
            self._loader.stepped()

    def returned(self) -> None: ...

    def pass_epoch(self) -> None:
        self._loader.pass_epoch()

    def leave_data(self) -> None: ...

    def leave_loop(self) -> None: ...

    def is_open(self, outside: bool) -> bool:
        run = self._run
        if run is None:
            return False
        left = run.left or (outside and run.by_generator)
        if left and run.used and self._session.ends_early:
            self._session.finish_step()
            self._loader.end_early()
        return run.inside and not left

    def end(self) -> None: ...
