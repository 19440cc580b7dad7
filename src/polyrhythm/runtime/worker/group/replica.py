"""A model of which this process has a shard."""

from collections.abc import Mapping

from torch import Tensor, nn
from torch.optim import Optimizer

from polyrhythm.runtime.wire.protocol import Term
from polyrhythm.runtime.wire.shard_protocol import NOT_IN_SHARES, NOT_ON_SERVERS
from polyrhythm.runtime.worker.group.link import SEVERAL, GroupLink
from polyrhythm.runtime.worker.replica import ScriptReplica


class ShardedReplica(ScriptReplica):
    """Flat vectors are of this process's shards, and norms those of the whole group."""

    def __init__(
        self, model: nn.Module, optimizer: Optimizer, link: GroupLink, moving: Mapping[str, Tensor] | None = None
    ) -> None:
        self._link = link
        super().__init__(model, optimizer, moving)

    @property
    def terms(self) -> dict[str, Term]:
        size = self._link.place.size
        servers = f"{SEVERAL} of {size}, and a server has whole ones"
        shares = f"{SEVERAL} of {size}, and FSDP weighs all mini-batches alike; use policy bsp"
        return {**super().terms, NOT_ON_SERVERS: servers, NOT_IN_SHARES: shares}

    def grad_sq_norm(self) -> float:
        return self._link.total(super().grad_sq_norm())
