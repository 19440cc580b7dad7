"""What is known of the script that runs in this process, and when a session takes over from torch."""

import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from types import TracebackType
from typing import Any, TypeAlias

import torch
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.errors import RefusalError, UsageError
from polyrhythm.runtime.script.alone import keep_quiet, shareable, warm_up_source
from polyrhythm.runtime.script.notices import asked_by_us, refuse, script_line, tell
from polyrhythm.runtime.script.order import check_loader
from polyrhythm.runtime.script.passes import Pass, ScriptLoader
from polyrhythm.runtime.script.schedulers import Schedules
from polyrhythm.runtime.script.session import ScriptSession
from polyrhythm.runtime.script.warm_up import WarmUpStep, check_step
from polyrhythm.runtime.script.wrapper import Lane

Iterate: TypeAlias = Callable[[DataLoader[Any]], Iterator[Any]]


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
        self.distributed = False
        """Whether the script knows of its ranks; otherwise it was written for a single process."""
        self.lane: Lane | None = None
        self.session: ScriptSession | None = None
        self.warm_up = WarmUpStep()
        self.schedules = Schedules(self._apart, self._reached)
        self._optimizer: Optimizer | None = None
        self._run: Pass | None = None
        """The pass that has given a mini-batch last; in a session, that of the epoch under way."""
        self._loader: ScriptLoader | None = None
        self._training: DataLoader[Any] | None = None
        self._parts = 1
        self._opened_at = 0
        self._unused = False
        """Whether the job's epoch under way has begun, but the script has not trained on any of it."""
        self._epoch = 0
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._places: weakref.WeakKeyDictionary[DataLoader[Any], str] = weakref.WeakKeyDictionary()
        self._original: Iterate = iter

    # -- what the script makes -----------------------------------------------------------------------------------------

    def wrapped(self, lane: Lane) -> None:
        if self.lane is not None:
            raise refuse("a second DistributedDataParallel; one model can be trained under a policy")
        self.lane = lane
        lane.called = self._forward
        tell("DistributedDataParallel follows the policy")

    def made_loader(self, loader: DataLoader[Any]) -> None:
        self._places[loader] = script_line()

    def made_optimizer(self, optimizer: Optimizer) -> None:
        if asked_by_us():
            return
        if type(optimizer).__name__ == "ZeroRedundancyOptimizer":
            raise refuse("ZeroRedundancyOptimizer shards the optimizer's state, but a policy needs whole replicas")
        self._optimizers.add(optimizer)

    # -- what the script does ------------------------------------------------------------------------------------------

    def iterate(self, loader: DataLoader[Any], original: Iterate) -> Iterator[Any]:
        self._original = original
        if self.dormant or loader not in self._places or not torch.is_grad_enabled():
            return original(loader)
        if self.session is not None:
            return Pass(self, loader, None).iterator() if self._trains_on(loader) else original(loader)
        theirs = self.distributed or not shareable(loader)
        return Pass(self, loader, original(loader) if theirs else warm_up_source(loader)).iterator()

    def backward(self) -> None:
        if not self.dormant and self.session is None:
            self.warm_up.backward()

    def before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.dormant or (optimizer is not self._optimizer and not self._adopt(optimizer)):
            return
        self._used()
        if self.session is None:
            self.warm_up.step(optimizer, args, kwargs, 0 if self._run is None else self._run.unstepped)
            return
        check_step(optimizer, args, kwargs)
        if not self.session.has_batch:
            raise refuse("optimizer.step without a mini-batch of the training loader; make one step for each")

    def _adopt(self, optimizer: Optimizer) -> bool:
        """Whether this is the script's optimizer, which steps for the first time."""
        if optimizer not in self._optimizers:
            return False
        if self._optimizer is not None:
            raise refuse("a second optimizer steps; one optimizer can be trained under a policy")
        self._optimizer = optimizer
        return True

    def after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._run is not None and optimizer is self._optimizer:
            self._run.step()

    def collective(self, name: str) -> None:
        if self._apart():
            assert self.session is not None, "they are apart in a session"
            raise refuse(
                f"{name} inside the step loop, where workers under {self.session.policy} make steps of their own; "
                "use a policy in synchronous mode (bsp, local), or do it after the loop"
            )

    def close(
        self,
        kind: type[BaseException] | None = None,
        error: BaseException | None = None,
        trace: TracebackType | None = None,
    ) -> None:
        session, self.session, self.dormant = self.session, None, True
        if session is not None:
            session.__exit__(kind, error, trace)

    # -- passes (see `Listener`) ---------------------------------------------------------------------------------------

    def before_batch(self, run: Pass) -> None:
        """Let the session take over after the warm-up step, or begin an epoch, or let the script only look."""
        if self.dormant:
            return
        if self.session is None and run.steps:
            self._begin(run, run.batches)
        elif self.session is None and self._trains_on(run.loader):
            self._begin(run, 0)
        elif run.source is None:
            self._start_epoch(run)
        elif run.looking and not run.used and run is self._run:
            self._look(run)

    def given(self, run: Pass) -> None:
        if self.session is None:
            self._run = run

    def finished(self, run: Pass) -> None:
        """An epoch that ends in the warm-up step is torch's own."""
        if self.session is None and run.steps:
            self._learn(run)
            self._epoch += 1
        self._unused &= run is not self._run

    def _trains_on(self, loader: DataLoader[Any]) -> bool:
        """Whether it is the training loader, or one that the script has made in its place for another epoch."""
        known = self._training
        if known is None or loader is known:
            return loader is known
        same = loader.dataset is known.dataset and loader.batch_size == known.batch_size
        return same and self._places[loader] == self._places[known]

    def _start_epoch(self, run: Pass) -> None:
        """Begin an epoch of the job, or begin again one that the script has only looked at."""
        assert self._loader is not None, "a session has a loader"
        self._loader.loader = run.loader
        run.source = self._loader.again() if self._unused else iter(self._loader)
        self._run, self._unused = run, True

    def _look(self, run: Pass) -> None:
        """The script evaluates the training data: the job's mini-batches wait for a pass that trains on them."""
        run.source = islice(self._original(run.loader), run.batches, None)
        self._run = None

    def _forward(self, trains: bool) -> None:
        if not trains and self._run is not None:
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
        """Whether the script is inside its loop over an epoch, where workers make steps of their own."""
        return self.session is not None and self.session.apart and self._run is not None and self._run.inside

    def _reached(self) -> int:
        """Steps since the session began that workers in synchronous mode would have made by now."""
        assert self._loader is not None, "a session has a loader"
        return self._loader.steps_reached - self._opened_at

    # -- from the warm-up step to a session
    # ---------------------------------------------------------------------------------

    def _learn(self, run: Pass) -> None:
        """The steps were made from this pass: it is over the training loader."""
        check_loader(run.loader, self._places[run.loader], self.distributed)
        self._training = run.loader
        self._parts = run.batches // run.steps

    def _begin(self, run: Pass, batches: int) -> None:
        """Start the session, `batches` of every worker after the start of the epoch."""
        if batches:
            self._learn(run)
        assert self._optimizer is not None, "a step was made"
        assert run.loader.batch_size is not None, "checked"
        run.source = None
        model = self._prepare_model(self._optimizer)
        self.session = self._open_session(model, self._optimizer)
        if not self.distributed:
            keep_quiet(self.rank)
        self._loader = self.session.take_over(
            run.loader,
            workers=self.workers,
            parts=self._parts,
            first_epoch=self._epoch,
            processed=batches * run.loader.batch_size * (self.workers if self.distributed else 1),
        )
        tell("the training loader's samples are dealt out by the job", self._places[run.loader])
        tell(f"{type(self._optimizer).__name__}.step follows the policy", self.warm_up.stepped_at)
        self.session.at_end = self.schedules.follow
        self._opened_at = self._loader.steps_to(self._epoch, batches // self._parts)
        self.schedules.settle()
        self._start_epoch(run)

    def _prepare_model(self, optimizer: Optimizer) -> torch.nn.Module:
        if self.lane is not None:
            self.lane.close()
            self.lane.scripted_sync = False
            model = self.lane.module
        else:
            model = self.warm_up.model_of(optimizer)
            for module in model if isinstance(model, torch.nn.ModuleList) else [model]:
                module.register_forward_pre_hook(lambda m, _: self._forward(torch.is_grad_enabled() and m.training))
        self.warm_up.close()
        return model

    def _open_session(self, model: torch.nn.Module, optimizer: Optimizer) -> ScriptSession:
        try:
            session = ScriptSession(model, optimizer, self.lane)
            session.__enter__()
        except RefusalError:
            raise
        except UsageError as error:
            raise refuse(str(error), self.warm_up.stepped_at) from error
        return session
