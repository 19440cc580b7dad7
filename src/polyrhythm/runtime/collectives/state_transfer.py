"""One member's tensors for all members: what a joiner starts from, and what re-aligns survivors that differ."""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten, treespec_dumps, treespec_loads

from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import broadcast


def hand_over_tensors(generation: Generation, tensors: Sequence[Tensor], source: int) -> None:
    """Overwrite tensors with those of the member of rank `source`, in one broadcast for each type and device.

    Raises:
        GroupError: when a member is lost; the tensors of the others are undefined then.
    """
    kinds = sorted({(str(tensor.device), str(tensor.dtype)) for tensor in tensors})
    for kind in kinds:
        same = [t.detach() for t in tensors if (str(t.device), str(t.dtype)) == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        broadcast(generation, flat.view(torch.uint8), source)
        parts: tuple[Tensor, ...] = torch.split_with_sizes(flat, [tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def hand_over_states(generation: Generation, states: Sequence[dict[str, Any]], source: int) -> list[dict[str, Any]]:
    """The states of an optimizer's parameters, whatever they are made of, as the member of rank `source` has them.

    Numbers, names and tensors go over, in lists and dicts of any depth.

    Raises:
        GroupError: when a member is lost.
    """
    leaves, spec = tree_flatten(list(states))
    shapes = [TensorShape.of(leaf) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
    told = share_bytes(generation, msgspec.msgpack.encode((treespec_dumps(spec), shapes), enc_hook=repr), source)
    shape, found = msgspec.msgpack.decode(told, type=tuple[str, list[TensorShape | float | str | bool | None]])
    own = generation.rank == source
    made = [each.empty() if isinstance(each, TensorShape) else each for each in found]
    values = [leaf.detach().clone() if isinstance(leaf, Tensor) else leaf for leaf in leaves] if own else made
    hand_over_tensors(generation, [value for value in values if isinstance(value, Tensor)], source)
    result: list[dict[str, Any]] = tree_unflatten(values, treespec_loads(shape))
    return result


class TensorShape(msgspec.Struct, frozen=True):
    """How to make room for a tensor."""

    size: tuple[int, ...]
    kind: str
    device: str

    @classmethod
    def of(cls, tensor: Tensor) -> "TensorShape":
        return cls(tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."), tensor.device.type)

    def empty(self) -> Tensor:
        return torch.empty(self.size, dtype=getattr(torch, self.kind), device=self.device)


def share_bytes(generation: Generation, data: bytes, source: int) -> bytes:
    """The bytes of the member of rank `source`, on everyone.

    Raises:
        GroupError: when a member is lost.
    """
    length = torch.tensor([len(data)])
    broadcast(generation, length, source)
    own = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    shared = own if generation.rank == source else torch.empty(int(length), dtype=torch.uint8)
    broadcast(generation, shared, source)
    return bytes(shared.tolist())
