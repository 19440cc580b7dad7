"""A session whose model, optimizer and loader are found in a script instead of being handed over."""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import TracebackType
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer

from polyrhythm.core import Policy
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.script.data.dealing import Dealing, placed
from polyrhythm.runtime.script.data.order import JOB_SEED
from polyrhythm.runtime.script.data.own_data import OwnData
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.data.script_loader import ScriptLoader
from polyrhythm.runtime.script.notices import callers, refuse, tell
from polyrhythm.runtime.script.script_exchange import DECIDES, LaneExchange, ScriptExchange, StepExchange
from polyrhythm.runtime.script.stalls import Stalls
from polyrhythm.runtime.script.training.deferred_step import DeferredStep
from polyrhythm.runtime.script.training.epoch_number import UNNUMBERED, place_beside_others, tell_unplaced
from polyrhythm.runtime.script.training.joint_step import JointStep, trained_by
from polyrhythm.runtime.script.training.loaded_values import LOADED, LoadedValues
from polyrhythm.runtime.script.training.objections import Objections
from polyrhythm.runtime.script.wrapper import Lane
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.loader import data_terms
from polyrhythm.runtime.worker.losses.figures import WriterEar
from polyrhythm.runtime.worker.optimizers import parts_of
from polyrhythm.runtime.worker.session import COLLECTIVE_TIMEOUT, Session

CHANGED = "the script changes the parameters by itself after a step, such as to clip them, which servers do not see"

INPLACE = "modified by an inplace operation"
"""What torch says of a value that a backward pass needs."""

LONE = "an epoch can end with a mini-batch of one sample, on which BatchNorm1d fails; drop_last=True leaves it out"

BETWEEN = (
    "optimizer.state_dict() between a mini-batch and its step has an older state than the servers; call it after step()"
)

SCALER = "grad_scaler.py"
"""File of torch's GradScaler."""


class ScriptSession(Session):
    """Takes over where the warm-up step ends.

    Args:
        model: the bare module.
        optimizer: of that model.
        lanes: the exchanges behind the script's DistributedDataParallel, one for each model, if it has any.
        arguments: what the script says about the job; see `polyrhythm.runtime.wire.config_sources`.
        objections: what stands against policies in its script.
        trainings: that the script has finished before in this process.
    """

    _exchange: ScriptExchange

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        lanes: Sequence[Lane],
        arguments: Mapping[str, Any],
        moving: Mapping[str, Tensor],
        objections: Objections,
        trainings: int = 0,
    ) -> None:
        super().__init__(model, optimizer, arguments, moving)
        self._objections, self._trainings = objections, trainings
        self._known = frozenset(map(id, self._replica.parameters))
        self._lanes = lanes
        self._joint: JointStep | None = None
        self.deferred = DeferredStep(self._replica)
        self.changes = self.loads = self.distributed = False
        """Whether the script changes parameters after its steps by itself, has loaded some before, knows of ranks."""
        self.computes: Callable[[], bool] = lambda: False
        """Whether the script computes what a step may follow."""
        self._told = False
        """Whether the optimizer's state was asked for meanwhile."""
        self.later: WeakSet[Optimizer] = WeakSet()
        """Optimizers that were made since the session began, for another training."""
        self.loaded = LoadedValues(self.parameters)
        self.at_end: Callable[[], None] = lambda: None
        """Called when all workers stand at the end of an epoch."""

    def __enter__(self) -> "ScriptSession":
        self._replica.unservable = self._replica.unservable or (CHANGED if self.changes else "")
        super().__enter__()
        if len(parts_of(self._optimizer)) > 1:
            self._joint = JointStep(self._replica, self._worker, self._exchange)
            self._objections.note("aggregates", DECIDES)
        self._objections.note("reduces", self._exchange.uncompressed)
        self._client.objection = self._objections.to
        self._ear = WriterEar(self._client.reported) if self._client.config.watched else None
        self._handles += [self.loaded.listen(part) for part in parts_of(self._optimizer)]
        return self

    def before_scaler(self, optimizer: Optimizer) -> None:
        """A GradScaler is about to look at the gradients of the step that is due."""
        if self._accumulation.due and not self._worker.left:
            self._exchange.before_scaler([p for g in optimizer.param_groups for p in g["params"] if p.requires_grad])

    def drop_skipped(self) -> bool:
        """A GradScaler looks at gradients of data that the script reads itself; whether they belong to a new step."""
        if self._joint is None:
            self._accumulation.end()
        return not self.has_batch

    def finish_step(self) -> bool:
        """Of several optimizers, none steps again with this mini-batch; whether any has."""
        made = self._joint is not None and self._joint.finish(self._accumulation.samples)
        return made and self._accumulation.take() > 0

    def stands_with(self, optimizer: Optimizer | None) -> bool:
        """Whether this one of several optimizers, or every one, has made its part of the step under way."""
        return self._joint is not None and self._joint.has_made(optimizer)

    @property
    def may_have_stepped(self) -> bool:
        """Whether several optimizers seem to be through with their step, where ranks differ until it is complete."""
        return self._joint is not None and self.ends_early and self._joint.is_usual and not self.computes()

    def take_over(
        self,
        run: Pass,
        dealing: Dealing,
        place: str,
        batches: int,
        distributed: bool,
        parts: int,
        where: Mapping[str, int],
    ) -> ScriptLoader:
        """The job's mini-batches in place of those of a script's loader, see `ScriptLoader`.

        Args:
            run: over that loader.
            dealing: who is to read what.
            place: where the script has made the loader.
            batches: that each rank has read of its first epoch.
            distributed: whether the script knows of its ranks.
            parts: mini-batches of one step.
            where: the numbers of the epoch; see `ScriptLoader`.
        """
        loader = run.loader
        dealing.check_job(self._client.config, place)
        dealing.check_parts(parts, place)
        dealt, ranks = dealing.dealt(loader, place), dealing.workers if distributed else 1
        data: dict[str, Any] = {"workers": dealing.workers, "ranks": ranks, "parts": parts, "dealt": dealt, **where}
        if dealing.injection is not None:
            assert loader.batch_size is not None, "the job deals it out"
            data["own_batch"] = self._start_injection(dealing.injection, loader.batch_size, JOB_SEED)
            data["inject"] = placed(self._injector, place)
        data |= {"processed": dealing.processed(loader, batches, distributed, dealt), "at_end": self._end_epoch}
        made = ScriptLoader(loader, self._worker, self._accumulation, **data)
        made._terms |= data_terms(dealing.partition, dealing.injection) | self._replica.terms
        made.reading, run.source = run.source, None
        self._turns.latest = made
        if dealing.workers > 1 and made.smallest == 1 and normalises(self._replica.model):
            tell(LONE, place)
        return made

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._ear is not None:
            self._ear.close()
        super().__exit__(kind, error, trace)

    def check_place(self, run: Pass, parts: int, other: Callable[[], str]) -> None:
        """A step follows the mini-batches that belong to it, or the last one of the script's own epoch.

        Args:
            run: over the training loader.
            parts: mini-batches of a step.
            other: says why another loader is not the training loader.
        """
        if not self._accumulation.samples:
            without = "optimizer.step without a mini-batch of the training loader; make one step for each"
            raise refuse(other() or without)
        if not self._accumulation.due and run.batches != len(run.loader):
            raise refuse(
                f"optimizer.step after {run.unstepped} mini-batches, where the first took {parts}; "
                "make each step from as many, but for the last of an epoch"
            )

    @property
    def is_over(self) -> bool:
        """Whether the script, between two epochs, has made what it trains next: an optimizer, further parameters for
        one, or, where those of the next epoch are not those of the script itself, other values of them."""
        if self.later or any(self._trains_more(part) for part in parts_of(self._optimizer)):
            return True
        return self.differs and self.loaded.since_epoch

    @property
    def differs(self) -> bool:
        """Whether ranks have other parameters than one another after a step; else an epoch begins with the script's."""
        return not (self._exchange.reduces or self._exchange.by_hand)

    @property
    def ends_early(self) -> bool:
        """Whether ranks that leave a loop before its end have to meet, to get the same parameters."""
        return self.differs or not self.aligned

    def _trains_more(self, optimizer: Optimizer) -> bool:
        for group in optimizer.param_groups:  # of which all are nearly always known, frozen ones apart
            if not self._known.issuperset(map(id, group["params"])):
                return not self._known.issuperset(map(id, trained_by(optimizer)))
        return False

    def train_again(self) -> None:
        """The script has finished a training and begins another one: leave the job until the next coordinator is there.

        Raises:
            RefusalError: if the job ends with its first training.
        """
        given = {"--standby": self._client.config.standby, "--checkpoint": self._client.config.checkpoint}
        flags = [f"{name} {value}" for name, value in given.items() if value]
        for flag in flags or ["--max-coordinator-restarts 0"] * (not self._client.recovers):
            raise refuse(f"the script begins another training, and {flag} is for jobs of one; leave it out")
        self._again = True
        if not self.loaded.optimizer:
            self._fetch_optimizer()
        self.__exit__(None, None, None)

    @torch.no_grad()
    def _fetch_optimizer(self) -> None:
        """The optimizer's state, which servers may have; the parameters are those of the script."""
        kept = [p.clone() for p in self.parameters]
        self._worker.fetch_state()
        for parameter, value in zip(self.parameters, kept, strict=True):
            parameter.copy_(value)

    def place_of(self, seen: int, number: int | None, drawn: bool = False) -> tuple[int, int]:
        """Which epoch of the job the script is in, and what it calls the job's first.

        A script that begins again by a snapshot of its own may be in a later one than it has seen.

        Args:
            seen: epochs that it has gone through in this process.
            number: what it calls the epoch at hand, if that can be told.
            drawn: whether its data come from no loader, so that its loops say nothing of the job's epochs.
        """
        info = self._client.info
        counted_from = info.script
        if counted_from is not None and not info.resume:
            begins_anew = drawn or (number is None and not self.loads)
            return (seen, counted_from) if begins_anew else place_beside_others(seen, number, counted_from)
        if number is None and not drawn:
            tell_unplaced()
        if number is None and counted_from is not None:
            if self.asked.counts_shares:
                raise refuse(f"{self.policy} counts shares of epochs, and {UNNUMBERED}")
            tell(f"{UNNUMBERED}; the job counts from its epoch {seen} on")
        if number is None or counted_from is None:
            return seen, 0 if number is None else number - seen
        return max(seen, number - counted_from), counted_from

    def origin(self, first: int | None) -> int | None:
        """What the script's loop, whose first epoch is called so, calls the job's epoch 0."""
        return first if self._client.info.script is None else self._client.info.script

    def begins_midway(self, first: int | None) -> bool:
        """Whether the loop may go on from a snapshot, in a job that keeps checkpoints and has none yet."""
        return bool(first) and self._client.config.checkpoint is not None and self._client.info.script is None

    @property
    def epochs(self) -> int:
        """Epochs that the job plans."""
        return self._client.config.epochs

    def _open_checkpoints(self) -> None:
        """The script has snapshots of its own."""

    def count(self, **how: Any) -> OwnData:
        """Steps whose data the job does not deal out."""
        return OwnData(self._worker, self._accumulation, at_end=self._end_epoch, **how)

    @property
    def parameters(self) -> list[nn.Parameter]:
        return self._replica.parameters

    @property
    def joint(self) -> bool:
        """Whether several optimizers make a step of the job."""
        return self._joint is not None

    @cached_property
    def asked(self) -> Policy[Any]:  # by a scheduler in each step
        return parse_policy(self._client.config.policy)

    @property
    def gives_way(self) -> bool:
        """Whether another policy comes in the place of one that the script turns out not to follow as it begins."""
        return self._worker.phase is not None and self._worker.phase.may_refuse

    @property
    def has_batch(self) -> bool:
        return self._accumulation.samples > 0

    @property
    def apart(self) -> bool:
        """Whether workers make steps of their own now, so that they cannot meet in a collective."""
        return self._worker.apart

    def collective(self) -> None:
        """The script has come to a collective of all ranks."""
        self._worker.collective()

    def wait_outside(self, for_all: bool) -> None:
        """The script stands in a collective outside of its loop, perhaps one `for_all` ranks."""
        self._worker.wait_outside(for_all)

    @property
    def awaited(self) -> bool:
        """Whether ranks that have yet to come to that collective begin another epoch."""
        return self._worker.awaited

    def watch(self, stalls: Stalls) -> None:
        stalls.watch(self._worker, lambda: self.aligned)

    def explain(self, error: RuntimeError) -> None:
        """Refuse a backward pass that has failed because a policy has written the parameters since the forward pass."""
        if self.joint and self.apart and INPLACE in str(error):
            raise refuse(
                f"{self.policy} has written these parameters since their model was called, as other optimizers have "
                "stepped in between; use bsp, or call the model after their steps"
            ) from error

    @property
    def aligned(self) -> bool:
        """Whether all workers have made the same steps since the job began, so that a step's collectives meet."""
        return not (self.apart or self._worker.been_apart)

    def _end_epoch(self) -> None:
        """In synchronous mode, all evaluate with the buffers of the lowest rank, as with DistributedDataParallel."""
        if not self.apart:
            self._exchange.share_buffers()
        self.at_end()
        self.loaded.end_epoch(measured=self.differs)

    def _make_exchange(self) -> DDPExchange:
        if not self._lanes:
            return StepExchange(self._replica, self.rank, COLLECTIVE_TIMEOUT, self._compression, self.distributed)
        exchange = LaneExchange(self._replica, self.rank, COLLECTIVE_TIMEOUT, self._compression)
        exchange.lanes = self._lanes
        return exchange

    def _before_state_dict(self) -> None:
        """In the middle of an epoch, too: a script has its own snapshots, and no `state_dict` of a session to call.

        A backward pass may need the parameters of its forward pass, so they stay until its step.
        """
        between = self.apart and (self.computes() or self.has_batch)
        if between and not self._told:
            self._told = True
            tell(BETWEEN)
        self._worker.fetch_state(within_epoch=self.apart and not between)

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # `Training.before_step` has seen to the rest.
        if self._worker.left:
            return
        if self._trains_more(optimizer):
            raise refuse("the optimizer has got parameters to train within the loop; give it these between two epochs")
        if self.loaded.take():
            if self.differs:
                raise refuse(LOADED)
            self._objections.note("unequal", LOADED)
        if self._joint is not None:
            if not self._accumulation.due:
                raise refuse("a step in the middle of the job's; accumulate in the same way in every epoch")
            self._joint.before(optimizer)
        elif self._accumulation.due:
            self.deferred.complete()
            self._exchange.before_step(self._replica.parameters)
            self._worker.before_step(self._accumulation.samples)
        elif not self.apart and any(path.endswith(SCALER) for path, _ in callers()):
            raise refuse("a GradScaler's step in the middle of the job's; accumulate in the same way in every epoch")
        else:
            self.deferred.put_off()

    def _after_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self._joint is not None:
            self._joint.after()
        elif self.deferred.under_way:
            self.deferred.stepped()
        elif not self._worker.left:
            self._worker.after_step(self._accumulation.take())


def normalises(model: nn.Module) -> bool:
    """Whether it takes means over a mini-batch."""
    return any(isinstance(each, _BatchNorm) for each in model.modules())
