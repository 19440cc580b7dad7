"""One member's whole state for all members: what a joiner starts from, and what re-aligns survivors that differ.

Structure travels as msgpack and tensors as raw bytes of a broadcast; nothing is unpickled.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import broadcast

Option = bool | int | float | str | None | tuple[float, ...]


class StateTensor(msgspec.Struct, tag=True, frozen=True):
    """A tensor of an optimizer's state; on the parameter's device, or on the host as Adam's step count."""

    dtype: str
    shape: tuple[int, ...]
    on_host: bool


class OptimizerOutline(msgspec.Struct, frozen=True):
    """An optimizer without its tensors: options of each group, and state of each parameter in their order."""

    optimizer: str
    groups: list[dict[str, Option]]
    state: list[dict[str, StateTensor | bool | int | float | None]]


def hand_over(generation: Generation, module: nn.Module, optimizer: Optimizer, source: int) -> None:
    """Give everyone the parameters, buffers and optimizer of the member of rank `source`, bit for bit.

    Never between a forward and its backward.

    Raises:
        GroupError: when a member is lost; the state of the others is undefined then.
        UsageError: for another optimizer than the source's, or one whose state is more than tensors and numbers
            for each parameter. The epoch has failed then.
    """
    hand_over_tensors(generation, [*module.parameters(), *module.buffers()], source)
    try:
        outline = hand_over_outline(generation, optimizer, source)
        if generation.rank != source:
            adopt(optimizer, outline)
    except PolyrhythmError as error:
        generation.abort(str(error))
        raise
    hand_over_tensors(generation, state_tensors(optimizer), source)


def hand_over_tensors(generation: Generation, tensors: Sequence[Tensor], source: int) -> None:
    """Overwrite tensors with those of the source, in one broadcast for each type and device."""
    kinds = sorted({(str(tensor.device), str(tensor.dtype)) for tensor in tensors})
    for kind in kinds:
        same = [t.detach() for t in tensors if (str(t.device), str(t.dtype)) == kind]
        flat = torch.cat([tensor.reshape(-1) for tensor in same])
        broadcast(generation, flat.view(torch.uint8), source)
        parts: tuple[Tensor, ...] = torch.split_with_sizes(flat, [tensor.numel() for tensor in same])
        for tensor, part in zip(same, parts, strict=True):
            tensor.copy_(part.view_as(tensor))


def hand_over_outline(generation: Generation, optimizer: Optimizer, source: int) -> OptimizerOutline:
    """The outline of the source's optimizer."""
    encoded = msgspec.msgpack.encode(outline_of(optimizer)) if generation.rank == source else b""
    length = torch.tensor([len(encoded)])
    broadcast(generation, length, source)
    data = torch.zeros(int(length), dtype=torch.uint8)
    if generation.rank == source:
        data = torch.frombuffer(bytearray(encoded), dtype=torch.uint8)
    broadcast(generation, data, source)
    return msgspec.msgpack.decode(bytes(data.tolist()), type=OptimizerOutline)


def outline_of(optimizer: Optimizer) -> OptimizerOutline:
    """The outline of an optimizer.

    Raises:
        UsageError: if its state is more than tensors and numbers for each parameter.
    """
    groups = [{k: option(k, v) for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
    state = [{k: entry(optimizer, k, v) for k, v in state_of(optimizer, p).items()} for p in parameters_of(optimizer)]
    return OptimizerOutline(type(optimizer).__name__, groups, state)


def option(name: str, value: object) -> Option:
    """An option of a group as the outline has it."""
    if value is None or isinstance(value, bool | int | float | str | tuple):
        return value
    raise UsageError(f"optimizer option {name} is a {type(value).__name__}; give a number to let workers join")


def entry(optimizer: Optimizer, name: str, value: object) -> StateTensor | bool | int | float | None:
    """How the outline has one entry of a parameter's state."""
    if isinstance(value, Tensor):
        return StateTensor(str(value.dtype).removeprefix("torch."), tuple(value.shape), value.device.type == "cpu")
    if value is None or isinstance(value, bool | int | float):
        return value
    raise UsageError(
        f"optimizer {type(optimizer).__name__} keeps {name}, a {type(value).__name__}, for a parameter; a worker can "
        "only take over tensors and numbers: choose an optimizer such as SGD or Adam"
    )


def adopt(optimizer: Optimizer, outline: OptimizerOutline) -> None:
    """Give an optimizer the options and, still without values, the state of another.

    Raises:
        UsageError: if it is another optimizer, or has other parameters.
    """
    mine, theirs = (type(optimizer).__name__, len(parameters_of(optimizer))), (outline.optimizer, len(outline.state))
    if mine != theirs or len(optimizer.param_groups) != len(outline.groups):
        raise UsageError(
            f"this worker has {mine[0]} on {mine[1]} parameters and the others have {theirs[0]} on {theirs[1]}; "
            "start all workers with the same script and arguments"
        )
    for group, options in zip(optimizer.param_groups, outline.groups, strict=True):
        group.update(options)
    for parameter, state in zip(parameters_of(optimizer), outline.state, strict=True):
        optimizer.state[parameter] = {name: value_of(value, parameter) for name, value in state.items()}


def value_of(value: StateTensor | bool | int | float | None, parameter: Tensor) -> Any:
    """An entry of the outline as an optimizer holds it."""
    if not isinstance(value, StateTensor):
        return value
    device = torch.device("cpu") if value.on_host else parameter.device
    return torch.zeros(value.shape, dtype=getattr(torch, value.dtype), device=device)


def parameters_of(optimizer: Optimizer) -> list[Tensor]:
    """All parameters in the order of the groups."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def state_of(optimizer: Optimizer, parameter: Tensor) -> dict[str, Any]:
    """State of one parameter; empty before its first step."""
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    return state


def state_tensors(optimizer: Optimizer) -> list[Tensor]:
    """All tensors of the state, in the order of the parameters."""
    entries = [value for p in parameters_of(optimizer) for value in state_of(optimizer, p).values()]
    return [value for value in entries if isinstance(value, Tensor)]
