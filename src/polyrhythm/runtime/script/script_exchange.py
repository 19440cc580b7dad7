"""A script's side of collectives: through its own DistributedDataParallel, or just before its optimizer steps."""

import contextlib
from collections.abc import Sequence
from datetime import timedelta

import torch
from torch import nn
from torch.optim import Optimizer

from polyrhythm.errors import GroupError, UsageError
from polyrhythm.runtime.collectives.attending.scaling import EAR, follow, unscale, update
from polyrhythm.runtime.collectives.model_averaging import ContributionWeight
from polyrhythm.runtime.collectives.ops import all_reduce, mean_gradients
from polyrhythm.runtime.collectives.state_transfer import hand_over_tensors
from polyrhythm.runtime.script.notices import refuse
from polyrhythm.runtime.script.training.joint_step import trained_by
from polyrhythm.runtime.script.wrapper import Lane
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.optimizers import parts_of
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.compression import Compression

DECIDES = "a policy that decides after the gradients cannot follow several optimizers; let it average parameters"


class ScriptExchange(DDPExchange):
    joint = False
    """Whether several optimizers make a step, each when the script wants it."""
    _has_agreed = False

    def reduce_gradients(self, wanted: bool) -> None:
        """As of a session; what is compressed is exchanged with the step."""
        self.by_hand = wanted and self._gradients is not None
        if self.by_hand and (why := self.uncompressed):
            raise refuse(why)
        self.reduces = wanted and not self.by_hand

    @property
    def uncompressed(self) -> str:
        """Why gradients that are to be compressed cannot be; empty if they can, or need not."""
        if self._gradients is None or not self.joint:
            return ""
        return "gradients of several optimizers are not compressed; leave out --compress"

    def awaits_reduction(self) -> bool:
        return self.by_hand

    def before_step(self, parameters: Sequence[nn.Parameter]) -> None:
        """The gradients of these parameters are the script's; make them the step's."""

    def before_scaler(self, parameters: Sequence[nn.Parameter]) -> None:
        """A GradScaler looks for infinities: those of all, so that all make the step or none."""
        self.ahead = False
        if self.awaits_reduction() and self.failure is None:
            with contextlib.suppress(GroupError):  # which `failure` tells the worker
                self.reduce_by_hand()
        self.before_step(parameters)
        self.ahead = self.by_hand or self.reduces

    def reduce_by_hand(self) -> None:
        if not self.ahead:
            super().reduce_by_hand()

    def attend(self) -> bool:
        if self.ahead:  # a GradScaler has found the same infinities on all ranks: nobody makes the step
            return False
        return super().attend() and (not self.by_hand or follow(self._replica.parameters))

    def _refuse(self, why: str) -> UsageError:
        return refuse(why)

    def average_gradients(self, weight: ContributionWeight) -> None:
        if self.joint:
            raise refuse(DECIDES)
        super().average_gradients(weight)

    def attend_rest(self) -> Sequence[Optimizer]:
        """With which of several optimizers only others have stepped; their gradients are here then."""
        return ()

    def finish_joint(self) -> None:
        """Several optimizers have made a step."""

    def _run_alone(self) -> None:
        """The model keeps the forward that it has; Lightning puts one there for each step."""

    def agree(self, members: Sequence[int], contributors: Sequence[int]) -> None:
        """The warm-up step has left all with the same parameters, but for buffers that each rank keeps."""
        first, self._has_agreed = not self._has_agreed, True
        own = [*self._replica.floating, *self._replica.counters] if first and self._keeps_buffers else []
        values = [buffer.clone() for buffer in own]
        super().agree(members, contributors)
        with torch.no_grad():
            for buffer, value in zip(own, values, strict=True):
                buffer.copy_(value)

    @property
    def _keeps_buffers(self) -> bool:
        """Whether each rank has its own, as under torchrun."""
        return False

    def share_buffers(self) -> None:
        buffers = [] if self._keeps_buffers else [*self._replica.floating, *self._replica.counters]
        if buffers and self.reduces and self.failure is None:
            with contextlib.suppress(GroupError):  # which `failure` tells the worker
                hand_over_tensors(self.generation, buffers, 0)


class LaneExchange(ScriptExchange):
    """Synchronous mode through the script's own DistributedDataParallel instead of behind the model's forward."""

    lanes: Sequence[Lane]

    def part(self) -> None:
        for lane in self.lanes:  # which look at the group
            lane.close()
        super().part()

    def leave(self) -> None:
        super().leave()
        for lane in self.lanes:
            lane.forget_buckets()

    def reduce_gradients(self, wanted: bool) -> None:
        super().reduce_gradients(wanted)
        for lane in self.lanes:
            if self.reduces and lane.inner is None:
                assert self.group is not None, "members exchange over their group"
                lane.open(self.group)
            elif not self.reduces:
                lane.forget_buckets()
            lane.reducing = self.reduces
        self._attended = [lane.inner for lane in self.lanes if lane.inner is not None]

    @property
    def uncompressed(self) -> str:
        if why := super().uncompressed:
            return why
        hooked = self._gradients is not None and any(lane.hook is not None for lane in self.lanes)
        return "a communication hook and --compress both replace the exchange; leave one of them out" if hooked else ""

    def awaits_reduction(self) -> bool:
        """Of passes in evaluation mode, too; under no_sync() torchrun exchanges nothing either."""
        self._passed_by = False
        for lane in self.lanes:
            if lane.evaluates and not self.joint and self.reduces and lane.is_unreduced:
                self._passed_by = True
        return self.by_hand or self._passed_by

    def reduce_by_hand(self) -> None:
        if self.by_hand:
            super().reduce_by_hand()
            return
        for lane in self.lanes:
            if lane.is_unreduced:
                lane.reduce_rest()

    @property
    def has_mean(self) -> bool:
        return super().has_mean or any(lane.late and not lane.evaluates for lane in self.lanes)

    def attend(self) -> bool:
        """Where passes are in evaluation mode as in the step before, the others exchange after them."""
        late = [lane for lane in self.lanes if lane.late]
        if self.ahead or not (self.reduces and late):
            return super().attend()
        for lane in late:
            lane.reduce_rest()
        return self._has_gradients and follow(self._replica.parameters)

    def reduce_now(self, wanted: bool) -> None:
        for lane in self.lanes:
            lane.last = wanted

    def share_buffers(self) -> None:
        super().share_buffers()
        for lane in self.lanes:
            lane.shared = True

    @property
    def _keeps_buffers(self) -> bool:
        """Whether the script has told DistributedDataParallel so."""
        return not any(lane.options.get("broadcast_buffers", True) for lane in self.lanes)


class StepExchange(ScriptExchange):
    """Synchronous mode of a script without DistributedDataParallel: gradients are exchanged just before a step.

    Args:
        replica, worker, timeout, compression: as of any.
        knows_ranks: whether the script does; then nothing but itself would share buffers.
    """

    def __init__(
        self, replica: ScriptReplica, worker: int, timeout: timedelta, compression: Compression, knows_ranks: bool
    ) -> None:
        super().__init__(replica, worker, timeout, compression)
        self._knows_ranks = knows_ranks

    @property
    def _keeps_buffers(self) -> bool:
        return self._knows_ranks

    def reduce_now(self, wanted: bool) -> None:
        """Backward passes exchange nothing, so it is all one."""

    _early: frozenset[Optimizer] = frozenset()
    """Of several optimizers those whose gradients were exchanged for a GradScaler."""

    @property
    def has_mean(self) -> bool:
        return super().has_mean or bool(self._early)

    def before_scaler(self, parameters: Sequence[nn.Parameter]) -> None:
        if not (self.joint and self.reduces):
            super().before_scaler(parameters)
            return
        part = self._part_of(parameters)
        self._early -= {part}
        self.before_step(parameters)
        self._early |= {part}

    def before_step(self, parameters: Sequence[nn.Parameter]) -> None:
        if self.ahead or not self.reduces or self.failure is not None:
            return
        with contextlib.suppress(GroupError):  # which `failure` tells the worker
            if self.joint:
                self._before_part(parameters)
                return
            mean_gradients(self.generation, parameters)
        self.share_buffers()  # of several a generator's backward pass, which needs its own, may be yet to come

    def _before_part(self, parameters: Sequence[nn.Parameter]) -> None:
        part = self._part_of(parameters)
        if part not in self._early:
            self._meet(part)
            mean_gradients(self.generation, parameters)
        self._early -= {part}

    def attend(self) -> bool:
        if not (self.joint and self.reduces):
            return super().attend()
        attended = self._attend_others()
        usable = [part for part in attended if self._usable(part)]
        self._update_scalers(attended, usable)
        self.share_buffers()
        return bool(usable)

    def _attend_passes(self) -> bool:
        self.before_step(self._replica.parameters)
        return self.failure is None and self._has_gradients

    def attend_rest(self) -> Sequence[Optimizer]:
        return [part for part in self._attend_others() if self._usable(part)]

    def _attend_others(self) -> Sequence[Optimizer]:
        attended, self._early = list[Optimizer](), frozenset()
        with contextlib.suppress(GroupError):
            while (part := self._meet(None)) is not None:
                for parameter in trained_by(part):
                    parameter.grad = None
                mean_gradients(self.generation, trained_by(part))
                attended.append(part)
        return attended

    def _update_scalers(self, attended: Sequence[Optimizer], usable: Sequence[Optimizer]) -> None:
        """Once for all optimizers of each, as scripts do at a step's end; this rank's own script does nothing."""
        scalers = {part: EAR.of_others(part) for part in attended}
        for scaler in set(scalers.values()):
            update(scaler, all(part in usable for part in attended if scalers[part] is scaler))

    def _usable(self, part: Optimizer) -> bool:
        if self.failure is None and unscale(EAR.of_others(part), trained_by(part)):
            return True
        for parameter in trained_by(part):
            parameter.grad = None
        return False

    def _meet(self, own: Optimizer | None) -> Optimizer | None:
        """Which optimizer steps next on some rank, where this one steps with its `own`, or with none any more.

        Raises:
            GroupError: when a member is lost.
        """
        parts = parts_of(self._replica.optimizer)
        flags = torch.tensor([float(part is own) for part in parts], device=self._replica.device)
        all_reduce(self.generation, flags)
        wanted = [part for part, count in zip(parts, flags.tolist(), strict=True) if count]
        if len(wanted) > 1:
            raise refuse(
                f"rank {self._worker} and another one step with different optimizers in step {self._completed + 1}; "
                "step with the same ones in the same order on every rank"
            )
        return wanted[0] if wanted else None

    def _part_of(self, parameters: Sequence[nn.Parameter]) -> Optimizer:
        parts = parts_of(self._replica.optimizer)
        return next(part for part in parts if any(p is parameters[0] for p in trained_by(part)))

    def finish_joint(self) -> None:
        self.share_buffers()
