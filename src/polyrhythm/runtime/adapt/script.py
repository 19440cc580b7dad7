"""What is known of the script that runs in this process, and when a session takes over from torch."""

import weakref
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.adapt.notices import RefusalError, asked_by_us, refuse, script_line, tell
from polyrhythm.runtime.adapt.order import check_loader
from polyrhythm.runtime.adapt.passes import Pass, ScriptLoader
from polyrhythm.runtime.adapt.session import ScriptSession
from polyrhythm.runtime.adapt.wrapper import Lane

Iterate: TypeAlias = Callable[[DataLoader[Any]], Iterator[Any]]


class Script:
    """Follows a script from its opening into a session.

    Args:
        workers: ranks of the job.
    """

    def __init__(self, workers: int) -> None:
        self.workers = workers
        self.dormant = False
        """Whether the script uses Polyrhythm itself, and nothing is to be adapted."""
        self.lane: Lane | None = None
        self.session: ScriptSession | None = None
        self._optimizer: Optimizer | None = None
        self._stepped_at = ""
        self._current: Pass | None = None
        self._loader: ScriptLoader | None = None
        self._training: Callable[[], DataLoader[Any] | None] = lambda: None
        self._parts = 1
        self._epoch = 0
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._places: weakref.WeakKeyDictionary[DataLoader[Any], str] = weakref.WeakKeyDictionary()

    # -- what the script makes -----------------------------------------------------------------------------------------

    def wrapped(self, lane: Lane) -> None:
        """A model was wrapped in DistributedDataParallel."""
        if self.lane is not None:
            raise refuse("a second DistributedDataParallel; one model can be trained under a policy")
        self.lane = lane
        lane.used = self._used
        tell("DistributedDataParallel follows the policy")

    def made_loader(self, loader: DataLoader[Any]) -> None:
        """A loader was made."""
        self._places[loader] = script_line()

    def made_optimizer(self, optimizer: Optimizer) -> None:
        """An optimizer was made."""
        if not asked_by_us():
            self._optimizers.add(optimizer)

    # -- what the script does ------------------------------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any], original: Iterate) -> Iterator[Any]:
        """What ``iter(loader)`` gives."""
        if self.dormant or loader not in self._places or not torch.is_grad_enabled():
            return original(loader)
        if self.session is None:
            return Pass(self, loader, original(loader))
        if loader is not self._training():
            return original(loader)
        return self._live_pass(loader)

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An optimizer is about to step."""
        if self.dormant or self.lane is None or optimizer not in self._optimizers:
            return
        if self._optimizer not in (None, optimizer):
            raise refuse("a second optimizer steps; one optimizer can be trained under a policy")
        if self._current is None or (self.session is not None and not self.session.has_batch):
            raise refuse("optimizer.step without a mini-batch of the training loader")
        self._optimizer = optimizer

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """It has stepped."""
        if self._current is not None and optimizer is self._optimizer:
            self._current.steps += 1
            self._stepped_at = self._stepped_at or script_line()

    def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        """The script is through."""
        session, self.session, self.dormant = self.session, None, True
        if session is not None:
            session.__exit__(kind, error, trace)

    # -- passes (see `Listener`) ---------------------------------------------------------------------------------------

    def before_batch(self, run: Pass) -> None:
        """Let the session take over behind the opening's step, or begin an epoch."""
        if self.session is None and run.steps:
            self._begin(run, run.batches)
        elif self.session is None and run.loader is self._training():
            self._begin(run, 0)
        elif run.source is None:
            assert self._loader is not None, "a session has a loader"
            self._loader.loader = run.loader
            run.source = iter(self._loader)

    def given(self, run: Pass) -> None:
        """The script gets a mini-batch."""
        self._current = run

    def finished(self, run: Pass) -> None:
        """An epoch that ends in the opening is torch's own."""
        if self.session is None and run.steps:
            self._learn(run)
            self._epoch += 1

    def _live_pass(self, loader: DataLoader[Any]) -> Pass:
        return Pass(self, loader, None)

    def _used(self) -> None:
        """A forward pass that a step may follow."""
        if self._current is not None:
            self._current.used = True

    # -- from the opening to a session ---------------------------------------------------------------------------------

    def _learn(self, run: Pass) -> None:
        """The steps were made from this pass: it is over the training loader."""
        check_loader(run.loader, self._places[run.loader])
        self._training = weakref.ref(run.loader)
        self._parts = run.batches // run.steps

    def _begin(self, run: Pass, batches: int) -> None:
        """Start the session, `batches` of every worker behind the start of the epoch."""
        if batches:
            self._learn(run)
        assert self.lane is not None, "a step was made"
        assert self._optimizer is not None, "a step was made"
        assert run.loader.batch_size is not None, "checked"
        run.source = None
        self.lane.close()
        try:
            self.session = ScriptSession(self.lane, self._optimizer)
            self.session.__enter__()
        except RefusalError:
            raise
        except PolyrhythmError as error:
            raise refuse(str(error), self._stepped_at) from error
        self._loader = self.session.take_over(
            run.loader,
            workers=self.workers,
            parts=self._parts,
            first_epoch=self._epoch,
            processed=batches * run.loader.batch_size * self.workers,
        )
        tell("training loader: its samples are dealt out by the job", self._places[run.loader])
        tell(f"{type(self._optimizer).__name__}.step follows the policy", self._stepped_at)
        run.source = iter(self._loader)
