"""What a process of a group exchanges with those that have the same place in other groups."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch import Tensor
from torch.distributed.distributed_c10d import Store
from torch.utils._pytree import tree_map_only

from polyrhythm.runtime.collectives.replica_check import refuse_apart, spread
from polyrhythm.runtime.collectives.state_transfer import hand_over_states
from polyrhythm.runtime.wire.protocol import MeasuredStep
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.group.link import GroupLink
from polyrhythm.runtime.worker.replica import ScriptReplica
from polyrhythm.training.flat import local_part, part_of


class SliceExchange(DDPExchange):
    """Collectives among the same shards of all groups, after FSDP's own within each.

    A collective that fails for one process of a group has failed for the group: each ends in a vote of the group's
    processes, so that they all take over a result, or none.
    """

    def __init__(self, replica: ScriptReplica, group: int, timeout: timedelta, link: GroupLink) -> None:
        super().__init__(replica, group, timeout)
        self._link = link
        self._parts: list[Any] = [module for module in self._model.modules() if hasattr(module, "reshard")]

    def meet(self, store: Store, members: Sequence[int], name: str, gathers: bool = False) -> None:
        super().meet(store, members, name, gathers)
        self.generation.agree = self._link.agree

    def reduce_gradients(self, wanted: bool) -> None:
        """FSDP reduces within the group in the backward pass; between groups shards are reduced after it."""
        self.by_hand = wanted

    def reduce_now(self, wanted: bool) -> None:
        """FSDP may still have whole parameters of a forward pass before, which are other ones by now."""
        for part in self._parts:
            part.reshard()

    def exchange_records(self, own: MeasuredStep) -> bytes:
        told = super().exchange_records
        return self._link.together(lambda: told(own))

    def check_equal(self) -> None:
        if self.generation.size > 1:
            found = spread(self.generation, self._replica.parameters, self._replica.optimizer)
            refuse_apart(self.generation, found._replace(distance=self._link.most(found.distance)))

    def common(self, loss: float | None) -> float | None:
        """The mean of the losses that the processes of this group have heard."""
        heard = self._link.total(float(loss is not None))
        total = self._link.total(loss or 0.0)
        return total / heard if heard else None

    def _take_state_of(self, source: int) -> None:
        replica = self._replica
        own = [tree_map_only(Tensor, local_part, replica.optimizer.state.get(p, {})) for p in replica.parameters]
        found = hand_over_states(self.generation, own, source)
        replica.set_state([laid_out(p, state) for p, state in zip(replica.parameters, found, strict=True)])


def laid_out(parameter: Tensor, state: dict[str, Any]) -> dict[str, Any]:
    """The optimizer's state of one parameter, whose shards stand as the parameter's do."""
    shape = local_part(parameter).shape

    def placed(value: Tensor) -> Tensor:
        return part_of(parameter, value) if value.dim() and value.shape == shape else value

    made: dict[str, Any] = tree_map_only(Tensor, placed, state)
    return made
