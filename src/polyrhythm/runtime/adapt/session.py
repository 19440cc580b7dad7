"""A session whose model, optimizer and loader are found in a script instead of being handed over."""

import os
from typing import Any

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from polyrhythm.runtime.adapt.passes import ScriptLoader
from polyrhythm.runtime.adapt.wrapper import Lane
from polyrhythm.runtime.exchange import Exchange
from polyrhythm.runtime.session import COLLECTIVE_TIMEOUT, Session


class LaneExchange(Exchange):
    """Lockstep through the script's own DistributedDataParallel instead of behind the model's forward."""

    lane: Lane

    def part(self) -> None:
        """Leave the group."""
        super().part()
        self.lane.close()

    def reduce_gradients(self, wanted: bool) -> None:
        """Whether backward passes from now on end in the mean gradient of all members."""
        self.reduces = wanted
        if wanted and self.lane.inner is None:
            assert self.group is not None, "members exchange over their group"
            self.lane.open(self.group)
        self.lane.reducing = wanted

    def reduce_now(self, wanted: bool) -> None:
        """Whether the next backward pass ends in the exchange."""
        if self.lane.inner is not None:
            self.lane.inner.require_backward_grad_sync = wanted


class ScriptSession(Session):
    """Takes over where the opening ends."""

    def __init__(self, lane: Lane, optimizer: Optimizer) -> None:
        super().__init__(lane.module, optimizer, os.environ.get("POLYRHYTHM_POLICY", "bsp"), epochs=1)
        self._lane = lane

    def take_over(self, loader: DataLoader[Any], **where: int) -> ScriptLoader:
        """Deal out the data in place of the script's loader; see `ScriptLoader`."""
        self._lane.scripted_sync = False
        made = ScriptLoader(loader, self._participant, self._accumulation, **where)
        self._loader = made
        return made

    @property
    def has_batch(self) -> bool:
        """Whether the script has a mini-batch of which it has made no step."""
        return self._accumulation.samples > 0

    @property
    def apart(self) -> bool:
        """Whether workers make steps of their own now, so that they cannot meet in a collective."""
        return self._participant.apart

    def _make_exchange(self) -> Exchange:
        exchange = LaneExchange(self._replica, self.rank, COLLECTIVE_TIMEOUT)
        exchange.lane = self._lane
        return exchange
