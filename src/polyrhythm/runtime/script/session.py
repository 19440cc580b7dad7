"""A session whose model, optimizer and loader are found in a script instead of being handed over."""

import contextlib
from collections.abc import Callable
from typing import Any

from torch import nn
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.ops import mean_gradients
from polyrhythm.runtime.collectives.state_transfer import hand_over_tensors
from polyrhythm.runtime.script.passes import ScriptLoader
from polyrhythm.runtime.script.wrapper import Lane
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange, reduce_next
from polyrhythm.runtime.worker.session import COLLECTIVE_TIMEOUT, Session


class ScriptExchange(DDPExchange):
    def before_step(self) -> None:
        """The gradients at hand are the script's; make them the step's."""

    def share_buffers(self) -> None:
        buffers = [*self._replica.floating, *self._replica.counters]
        if buffers and self.reduces and self.failure is None:
            with contextlib.suppress(GroupError):  # which `failure` tells the worker
                hand_over_tensors(self.generation, buffers, 0)


class LaneExchange(ScriptExchange):
    """Synchronous mode through the script's own DistributedDataParallel instead of behind the model's forward."""

    lane: Lane

    def part(self) -> None:
        super().part()
        self.lane.close()

    def reduce_gradients(self, wanted: bool) -> None:
        self.reduces = wanted
        if wanted and self.lane.inner is None:
            assert self.group is not None, "members exchange over their group"
            self.lane.open(self.group)
        self.lane.reducing = wanted

    def reduce_now(self, wanted: bool) -> None:
        reduce_next(self.lane.inner, wanted)


class StepExchange(ScriptExchange):
    """Synchronous mode of a script without DistributedDataParallel: gradients are exchanged just before a step."""

    def reduce_gradients(self, wanted: bool) -> None:
        self.reduces = wanted

    def reduce_now(self, wanted: bool) -> None:
        """Backward passes exchange nothing, so it is all one."""

    def before_step(self) -> None:
        if not self.reduces or self.failure is not None:
            return
        with contextlib.suppress(GroupError):  # which `failure` tells the worker
            mean_gradients(self.generation, self._replica.parameters)
        self.share_buffers()


class ScriptSession(Session):
    """Takes over where the warm-up step ends.

    Args:
        model: the bare module.
        optimizer: of that model.
        lane: the exchange behind the script's DistributedDataParallel, if it has one.
    """

    _exchange: ScriptExchange

    def __init__(self, model: nn.Module, optimizer: Optimizer, lane: Lane | None) -> None:
        super().__init__(model, optimizer)
        self._lane = lane
        self.at_end: Callable[[], None] = lambda: None
        """Called when all workers stand at the end of an epoch."""

    def take_over(self, loader: DataLoader[Any], **where: int) -> ScriptLoader:
        made = ScriptLoader(loader, self._worker, self._accumulation, at_end=self._end_epoch, **where)
        self._loader = made
        return made

    @property
    def has_batch(self) -> bool:
        return self._accumulation.samples > 0

    @property
    def apart(self) -> bool:
        """Whether workers make steps of their own now, so that they cannot meet in a collective."""
        return self._worker.apart

    def _end_epoch(self) -> None:
        """In synchronous mode, all evaluate with the buffers of the lowest rank, as with DistributedDataParallel."""
        if not self.apart:
            self._exchange.share_buffers()
        self.at_end()

    def _make_exchange(self) -> DDPExchange:
        if self._lane is None:
            return StepExchange(self._replica, self.rank, COLLECTIVE_TIMEOUT, self._compression)
        exchange = LaneExchange(self._replica, self.rank, COLLECTIVE_TIMEOUT, self._compression)
        exchange.lane = self._lane
        return exchange

    def _before_step(self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._exchange.before_step()
        self._accumulation.check()  # `check_step` has seen to the rest
        self._worker.before_step(self._accumulation.samples)
