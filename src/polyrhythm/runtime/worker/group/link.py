"""How the processes of one group come to the same answers."""

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any, TypeVar, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.errors import GroupError, UnreachableError, UsageError
from polyrhythm.runtime.launch.groups import GroupPlace, place_in_group

Agreed = TypeVar("Agreed")

FOREVER = timedelta(days=7)
"""The leader may wait for other groups as long as it likes: the launcher ends a group of which a process has died."""

SEVERAL = "the model is sharded over the processes of a group"


class GroupLink:
    """This process among those of its group; all of them call the same methods in the same order.

    Args:
        place: of this process.
        group: torch's, of all processes of this group, for tensors on the CPU.

    Example:
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
        >>> link = GroupLink(GroupPlace(group=1, groups=2, place=0, size=1), dist.group.WORLD)
        >>> link.share(b"word"), link.anyone(False), link.total(2.5), link.most(0.5), link.own([3, 4])
        (b'word', False, 2.5, 0.5, [3, 4])
        >>> link.agree(None), link.agree("a member is gone")
        (None, 'a member is gone')
        >>> dist.destroy_process_group()
    """

    def __init__(self, place: GroupPlace, group: Any) -> None:
        self.place, self._group = place, group

    @property
    def leads(self) -> bool:
        return self.place.place == 0

    def share(self, word: bytes = b"") -> bytes:
        """What the leader says."""
        length = torch.tensor([len(word)])
        self._broadcast(length)
        data = (
            torch.frombuffer(bytearray(word), dtype=torch.uint8)
            if word
            else torch.empty(int(length), dtype=torch.uint8)
        )
        if len(data):
            self._broadcast(data)
        return bytes(data.numpy())

    def anyone(self, says: bool) -> bool:
        """Whether one of them says so."""
        return self.most(float(says)) > 0

    def most(self, number: float) -> float:
        return self._reduced(number, ReduceOp.MAX)

    def total(self, number: float) -> float:
        return self._reduced(number, ReduceOp.SUM)

    def agree(self, failure: str | None) -> str | None:
        """Why what all have tried has failed; what has failed for one has failed for all."""
        failed = self.anyone(failure is not None)
        return (failure or "it has failed for another process of this group") if failed else None

    def together(self, act: Callable[[], Agreed]) -> Agreed:
        """Do what may fail for one of them.

        Raises:
            GroupError: for all, if it does.
        """
        failure, found = None, cast(Agreed, None)
        try:
            found = act()
        except GroupError as error:
            failure = str(error)
        if (failure := self.agree(failure)) is not None:
            raise GroupError(failure)
        return found

    def own(self, indices: list[int]) -> list[int]:
        """What of the group's mini-batch is for this process: as many for each, and at least one, as a sampler pads."""
        place, size, count = self.place.place, self.place.size, len(indices)
        if count < size:
            return [indices[place % count]]
        return indices[place * count // size : (place + 1) * count // size]

    def _reduced(self, number: float, op: Any) -> float:
        tensor = torch.tensor([number], dtype=torch.float64)
        self._run(lambda: dist.all_reduce(tensor, op, group=self._group))
        return float(tensor)

    def _broadcast(self, tensor: Tensor) -> None:
        self._run(lambda: dist.broadcast(tensor, group=self._group, group_src=0))

    def _run(self, collective: Any) -> None:
        try:
            collective()
        except RuntimeError as error:
            raise UnreachableError(f"another process of group {self.place.group} is gone: {error}") from None


def find_link(model: nn.Module) -> GroupLink | None:
    """The link of this process, if it is one of a group.

    Raises:
        UsageError: for a model that is not sharded over all processes of the group, and no others.
    """
    place = place_in_group(os.environ)
    if place is None:
        return None
    check_sharded(model, place.size)
    return GroupLink(place, dist.new_group(backend="gloo", timeout=FOREVER))


def check_sharded(model: nn.Module, size: int) -> None:
    """Only FSDP2 over one mesh: then members read different samples, and the mean of their gradients is the group's."""
    from torch.distributed.fsdp import FSDPModule
    from torch.distributed.tensor import DTensor, Shard

    where = f"--group-size {size}"
    for module in model.modules():
        if isinstance(module, FSDPModule):  # which has whole parameters after a forward pass alone
            module.reshard()
    if not isinstance(model, FSDPModule):
        raise UsageError(
            f"{where} is for a model that torch.distributed.fsdp.fully_shard has sharded over the processes of the "
            f"group, and {type(model).__name__} is not; call init_process_group and fully_shard before the session"
        )
    for name, parameter in model.named_parameters():
        whole: Any = parameter
        mesh = whole.device_mesh if isinstance(parameter, DTensor) else None
        if mesh is None or mesh.ndim != 1 or mesh.size() != size or not isinstance(whole.placements[0], Shard):
            laid_out = "not sharded" if mesh is None else f"laid out as {whole.placements} on {mesh}"
            raise UsageError(
                f"{where} needs every parameter sharded by fully_shard over the {size} processes of the group, and "
                f"{name} is {laid_out}; give fully_shard a mesh of one dimension, or none"
            )
