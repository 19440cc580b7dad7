"""Collectives of the session itself: averages over flat vectors, gradients without buckets, what members must agree on.

Unlike those that DistributedDataParallel starts, these raise: their caller knows what to do. One operation moves a
whole vector; cutting it in chunks made gloo slower at every size (two and four processes, 0.3 to 44 MB).
"""

import struct
import zlib
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.runtime.epoch import Epoch, GroupError, first_line
from polyrhythm.runtime.work import guard
from polyrhythm.training.flat import FlatLayout, split_buffers, trainable_parameters


def all_reduce(epoch: Epoch, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
    """Combine the members' tensors in place; equal bits on every member.

    Raises:
        GroupError: when a member is lost; the content of `tensor` is undefined then.
    """
    options = dist.AllreduceOptions()
    options.reduceOp = ReduceOp(op)
    finish(epoch, "allreduce", [tensor], [tensor], options)


def mean(epoch: Epoch, vector: Tensor, share: float | None = None) -> None:
    """Weighted mean in place: sum over the members of share_i * vector_i.

    Args:
        epoch: who takes part.
        vector: this member's contribution, and the result.
        share: its weight; those of all members add up to one. None is uniform.

    Raises:
        GroupError: when a member is lost; the content of `vector` is undefined then.
    """
    vector.mul_(1.0 / epoch.size if share is None else share)
    all_reduce(epoch, vector)


def broadcast(epoch: Epoch, tensor: Tensor, source: int = 0) -> None:
    """Overwrite a tensor with that of the member of rank `source`.

    Raises:
        GroupError: when a member is lost; the content of `tensor` is undefined then.
    """
    options = dist.BroadcastOptions()
    options.rootRank = source
    finish(epoch, "broadcast", [tensor], [tensor], options)


def gather_bytes(epoch: Epoch, record: bytes) -> list[bytes]:
    """Everyone's record, by rank; all of the same length.

    Raises:
        GroupError: when a member is lost.
    """
    own = torch.frombuffer(bytearray(record), dtype=torch.uint8)
    records = [torch.empty_like(own) for _ in range(epoch.size)]
    finish(epoch, "allgather", records, [records], [own])
    return [bytes(found.tolist()) for found in records]


def finish(epoch: Epoch, collective: str, outputs: list[Tensor], *arguments: object) -> None:
    """Run a collective that writes into `outputs` to its end; a failure ends the epoch."""
    try:
        work = getattr(epoch.backend(outputs[0].device), collective)(*arguments)
    except RuntimeError as error:
        epoch.verdict.fail(first_line(error))
    else:
        guard(work, epoch.verdict, outputs).wait()
    if epoch.failure is not None:
        raise GroupError(f"{collective} in epoch {epoch.prefix!r} among {epoch.members} failed: {epoch.failure}")


class ReplicaMean:
    """Averages a module over the members: trainable parameters and floating-point buffers, the same share for both.

    Of other buffers, such as batch norm's counter of batches, everyone takes the largest value, as
    `polyrhythm.training.averaging` has it. Holds one flat copy of what it averages.

    Args:
        module: float32, not wrapped; its tensors stay where they are.
    """

    def __init__(self, module: nn.Module) -> None:
        floating, counters = split_buffers(module)
        parameters = trainable_parameters(module)
        self._layout = FlatLayout.of(parameters, floating)
        self._tensors = [*parameters.values(), *floating.values()]
        self._counters = list(counters.values())
        self._flat = torch.empty(self._layout.size, device=self._tensors[0].device)

    def __call__(self, epoch: Epoch, share: float | None = None) -> None:
        """Average now. Never between a forward and its backward.

        Raises:
            GroupError: when a member is lost; the module is unchanged then.
        """
        mean(epoch, self._layout.gather(self._tensors, self._flat), share)
        counters = [counter.clone() for counter in self._counters]
        for counter in counters:
            all_reduce(epoch, counter.view(torch.uint8) if counter.dtype == torch.bool else counter, ReduceOp.MAX)
        self._layout.scatter(self._flat, self._tensors)
        for own, largest in zip(self._counters, counters, strict=True):
            own.copy_(largest)


def mean_gradients(epoch: Epoch, parameters: Sequence[nn.Parameter]) -> None:
    """Average ``.grad`` as DistributedDataParallel would, without its buckets: one vector in the order of parameters.

    A parameter that got a gradient on some members counts as zero on the others; one that nobody used keeps None.

    Raises:
        GroupError: when a member is lost; the gradients are unchanged then.
    """
    used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
    flat = torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters])
    mean(epoch, flat)
    all_reduce(epoch, used)
    start = 0
    for parameter, users in zip(parameters, used.tolist(), strict=True):
        part = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
        if parameter.grad is not None:
            parameter.grad.copy_(part)
        elif users:
            parameter.grad = part.clone()


class Census(NamedTuple):
    """What a member says of itself when an epoch begins.

    Args:
        updates: steps that its parameters contain; after a loss survivors can differ by one.
        parameters: `fingerprint` of the parameters. (In lockstep buffers differ until the next forward pass.)
        layout: `polyrhythm.runtime.layout.fingerprint` of its buckets.
    """

    updates: int
    parameters: int
    layout: int


CENSUS = struct.Struct("<QQQ")


def take_census(epoch: Epoch, own: Census) -> list[Census]:
    """Everyone's census, by rank.

    Raises:
        GroupError: when a member is lost.
    """
    return [Census(*CENSUS.unpack(record)) for record in gather_bytes(epoch, CENSUS.pack(*own))]


def most_advanced(census: Sequence[Census]) -> int:
    """Rank of the first member with the most updates: the one whose state the others adopt if they differ.

    >>> most_advanced([Census(7, 0, 0), Census(8, 0, 0), Census(8, 0, 0)])
    1
    """
    return max(range(len(census)), key=lambda rank: (census[rank].updates, -rank))


def fingerprint(tensors: Iterable[Tensor]) -> int:
    """CRC-32 over the tensors' bytes, 7 ms for 44 MB. Equal bits have equal fingerprints.

    >>> fingerprint([torch.zeros(3)]) == fingerprint([torch.zeros(2), torch.zeros(1)])
    True
    >>> fingerprint([torch.zeros(3)]) == fingerprint([torch.ones(3)])
    False
    """
    checksum = 0
    for tensor in tensors:
        data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        checksum = zlib.crc32(data.numpy().data, checksum)
    return checksum
