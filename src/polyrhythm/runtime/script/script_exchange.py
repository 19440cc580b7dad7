"""A script's side of collectives: through its own DistributedDataParallel, or just before its optimizer steps."""

import contextlib
from collections.abc import Sequence
from typing import ClassVar

from torch import Tensor, nn

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.model_averaging import ContributionWeight
from polyrhythm.runtime.collectives.ops import mean_gradients
from polyrhythm.runtime.collectives.state_transfer import hand_over_tensors
from polyrhythm.runtime.script.notices import refuse
from polyrhythm.runtime.script.wrapper import Lane
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange


class ScriptExchange(DDPExchange):
    joint = False
    """Whether several optimizers make a step, each when the script wants it."""
    inv_scale: ClassVar[Tensor | None] = None
    """What the script's GradScaler multiplies gradients with, once it has looked at some."""
    ahead = False
    """Whether the gradients of the step under way were exchanged already, for a GradScaler to look at."""

    def reduce_gradients(self, wanted: bool) -> None:
        """As of a session; what is compressed is exchanged with the step."""
        self.by_hand = wanted and self._gradients is not None
        if self.by_hand:
            self._check_by_hand()
        self.reduces = wanted and not self.by_hand

    def _check_by_hand(self) -> None:
        if self.joint:
            raise refuse("gradients of several optimizers are not compressed; leave out --compress")

    def before_step(self, parameters: Sequence[nn.Parameter]) -> None:
        """The gradients of these parameters are the script's; make them the step's."""

    def before_scaler(self, parameters: Sequence[nn.Parameter]) -> None:
        """A GradScaler looks for infinities: those of all, so that all make the step or none."""
        self.ahead = False
        if self.by_hand and self.failure is None:
            with contextlib.suppress(GroupError):  # which `failure` tells the worker
                self.reduce_by_hand()
        self.before_step(parameters)
        self.ahead = self.by_hand or self.reduces

    def reduce_by_hand(self) -> None:
        if not self.ahead:
            super().reduce_by_hand()
        self.ahead = False

    def attend(self) -> bool:
        if self.ahead:  # a GradScaler has found the same infinities on all ranks: nobody makes the step
            self.ahead = False
            return False
        return self._attend() and self._unscale()

    def _attend(self) -> bool:
        """Whether others make the step; their gradients are here then, as they were exchanged."""
        return super().attend()

    def _unscale(self) -> bool:
        """What the others' GradScaler does with them; whether they are finite, so that it lets them step."""
        gradients = [parameter.grad for parameter in self._replica.parameters if parameter.grad is not None]
        if self.inv_scale is None:
            return True
        for gradient in gradients:
            gradient.mul_(self.inv_scale.to(gradient.device))
        return all(bool(gradient.isfinite().all()) for gradient in gradients)

    def average_gradients(self, weight: ContributionWeight) -> None:
        if self.joint:
            raise refuse(
                "a policy that decides after the gradients cannot follow several optimizers; let it average parameters"
            )
        super().average_gradients(weight)

    def finish_joint(self) -> None:
        """Several optimizers have made a step."""

    def _run_alone(self) -> None:
        """The model keeps the forward that it has; Lightning puts one there for each step."""

    def share_buffers(self) -> None:
        buffers = [*self._replica.floating, *self._replica.counters]
        if buffers and self.reduces and self.failure is None:
            with contextlib.suppress(GroupError):  # which `failure` tells the worker
                hand_over_tensors(self.generation, buffers, 0)


class LaneExchange(ScriptExchange):
    """Synchronous mode through the script's own DistributedDataParallel instead of behind the model's forward."""

    lanes: Sequence[Lane]

    def part(self) -> None:
        super().part()
        for lane in self.lanes:
            lane.close()

    def reduce_gradients(self, wanted: bool) -> None:
        super().reduce_gradients(wanted)
        for lane in self.lanes:
            if self.reduces and lane.inner is None:
                assert self.group is not None, "members exchange over their group"
                lane.open(self.group)
            lane.reducing = self.reduces

    def _check_by_hand(self) -> None:
        super()._check_by_hand()
        if any(lane.hook is not None for lane in self.lanes):
            raise refuse("a communication hook and --compress both replace the exchange; leave one of them out")

    def reduce_now(self, wanted: bool) -> None:
        for lane in self.lanes:
            lane.last = wanted


class StepExchange(ScriptExchange):
    """Synchronous mode of a script without DistributedDataParallel: gradients are exchanged just before a step."""

    def reduce_now(self, wanted: bool) -> None:
        """Backward passes exchange nothing, so it is all one."""

    def before_step(self, parameters: Sequence[nn.Parameter]) -> None:
        ahead, self.ahead = self.ahead, False
        if ahead or not self.reduces or self.failure is not None:
            return
        with contextlib.suppress(GroupError):  # which `failure` tells the worker
            mean_gradients(self.generation, parameters)
        if not self.joint:  # else a generator's backward pass, which needs its buffers, may be yet to come
            self.share_buffers()

    def _attend(self) -> bool:
        if self.by_hand:
            return super()._attend()
        if self.joint or not self.reduces:
            return False
        self.before_step(self._replica.parameters)
        return self.failure is None and self._has_gradients

    def finish_joint(self) -> None:
        self.share_buffers()
