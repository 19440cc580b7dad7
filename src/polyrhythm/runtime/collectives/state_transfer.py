"""One member's tensors for all members: what a joiner starts from, and what re-aligns survivors that differ."""

import contextlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Any, Final

import msgspec
import numpy as np
import torch
from torch import Tensor

from polyrhythm.errors import GroupError, UsageError, shown
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import all_reduce, broadcast

WORD: Final = 64
"""Bits of an integer beyond which msgpack has none."""

KINDS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (list, tuple, torch.Size, dict, OrderedDict)}
"""What a state may be nested in, by name."""


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
    """The states of an optimizer's parameters as the member of rank `source` has them.

    Numbers, names and tensors go over, in lists, tuples and dicts of any depth.

    Raises:
        UsageError: on all members, if there is something else in them.
        GroupError: when a member is lost.
    """
    own = generation.rank == source
    told, tensors = tell_states(states) if own else (b"", [])
    given = msgspec.msgpack.decode(share_bytes(generation, told, source), type=ToldStates)
    if given.refusal:
        with contextlib.suppress(GroupError):  # nobody leaves the group before all have the answer
            all_reduce(generation, torch.zeros(1))
        raise UsageError(given.refusal)
    values = [tensor.detach().clone() for tensor in tensors] if own else [shape.empty() for shape in given.shapes]
    hand_over_tensors(generation, values, source)
    result: list[dict[str, Any]] = rebuilt(given.tree, iter(values))
    return result


def tell_states(states: Sequence[dict[str, Any]]) -> tuple[bytes, list[Tensor]]:
    """These states without their tensors, in bytes, or why they cannot be told; and the tensors in order."""
    tensors: list[Tensor] = []
    try:
        rows = [described(state, f"state[{number}]", tensors) for number, state in enumerate(states)]
    except UsageError as error:
        return msgspec.msgpack.encode(ToldStates(refusal=str(error))), []
    shapes = [TensorShape.of(tensor) for tensor in tensors]
    return msgspec.msgpack.encode(ToldStates(["list", rows], shapes)), tensors


def described(value: Any, place: str, tensors: list[Tensor]) -> Any:
    """A value as msgpack has it: what msgpack would change is a list of its kind and its content.

    Args:
        value: of an optimizer's state.
        place: where it stands: ``state``, the number of its parameter, and keys.
        tensors: those in it are appended here.

    Raises:
        UsageError: for what is no number, name or tensor.
    """
    if isinstance(value, np.generic):
        value = value.item()
    kind = type(value)
    if value is None or kind in (bool, float, str) or (kind is int and value.bit_length() < WORD):
        return value
    if kind is int:
        return ["int", hex(value)]
    if isinstance(value, Tensor):
        tensors.append(value)
        return ["tensor", None]
    if KINDS.get(kind.__name__) is kind:
        items = value.items() if isinstance(value, dict) else enumerate(value)
        pairs = [(described(key, place, tensors), described(each, f"{place}[{key!r}]", tensors)) for key, each in items]
        return [kind.__name__, pairs if isinstance(value, dict) else [each for _, each in pairs]]
    raise UsageError(
        f"{place} of the optimizer is {shown(value)} of class {kind.__name__}, which no other worker can take over; "
        "keep numbers, names and tensors there, in lists, tuples and dicts"
    )


def rebuilt(told: Any, tensors: Iterator[Tensor]) -> Any:
    """The reverse of `described`."""
    if not isinstance(told, list):
        return told
    kind, content = told
    if kind == "tensor":
        return next(tensors)
    if kind == "int":
        return int(content, 16)
    made = KINDS[kind]
    if issubclass(made, dict):
        return made((rebuilt(key, tensors), rebuilt(each, tensors)) for key, each in content)
    return made([rebuilt(each, tensors) for each in content])


class ToldStates(msgspec.Struct, frozen=True):
    """What is said of states before their tensors follow.

    It comes from another process, so it names no class but those of `KINDS`, and nothing in it is run.
    """

    tree: Any = None
    shapes: list["TensorShape"] = []
    refusal: str = ""


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
    own = generation.rank == source
    shared = (
        torch.frombuffer(bytearray(data), dtype=torch.uint8) if own else torch.empty(int(length), dtype=torch.uint8)
    )
    broadcast(generation, shared, source)
    return bytes(shared.tolist())
