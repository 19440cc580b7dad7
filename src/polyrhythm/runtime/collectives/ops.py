"""Collectives of the session itself: averages over flat vectors, gradients without buckets.

Unlike those that DistributedDataParallel starts, these raise: their caller knows what to do. One operation moves a
whole vector; cutting it in chunks made gloo slower at every size (two and four processes, 0.3 to 44 MB).
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.group_health import first_line
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.nonraising_work import guard
from polyrhythm.training.flat import gradient_of, local_part, part_of


def all_reduce(
    generation: Generation, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM, lends: bool = False
) -> None:
    """Combine the members' tensors in place; equal bits on every member. `lends` is as of `SharedBuffers.add_up`.

    Raises:
        GroupError: when a member is lost; the content of `tensor` is undefined then.
    """
    finish(generation, "allreduce", [tensor], reduction(op), lends)


def launch_reduction(
    generation: Generation, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM, lends: bool = False
) -> "InFlight":
    if offer := generation.in_memory("allreduce", [tensor], reduction(op), lends):
        return InFlight(generation, "allreduce", offer.start())
    return launch(generation, "allreduce", [tensor], [tensor], reduction(op))


@cache
def reduction(op: ReduceOp.RedOpType) -> dist.AllreduceOptions:
    options = dist.AllreduceOptions()
    options.reduceOp = ReduceOp(op)
    return options


class UnderWay(Protocol):
    """Something that arrives in the place of tensors."""

    def wait(self) -> None:
        """Until it is there; raises `GroupError` when a member is lost."""


LaunchSum: TypeAlias = Callable[[Generation, Tensor, bool], UnderWay]
"""Starts to sum up the members' float32 vectors in place; the flag says that this member's is all zeros.

The vector is the caller's alone: it may be lent, see `SharedBuffers.add_up`.
"""


def launch_sum(generation: Generation, tensor: Tensor, zero: bool) -> UnderWay:
    """A `LaunchSum` that reduces from worker to worker; zeros travel as well."""
    del zero
    return launch_reduction(generation, tensor, lends=True)


def mean(generation: Generation, vector: Tensor, share: float | None = None) -> None:
    """Weighted mean in place: sum over the members of share_i * vector_i.

    Args:
        generation: who takes part.
        vector: this member's contribution, and the result.
        share: its weight; those of all members add up to one. None is uniform.

    Raises:
        GroupError: when a member is lost; the content of `vector` is undefined then.
    """
    if share == 0.0:
        vector.zero_()  # not 0 times a number that may be infinite
    else:
        vector.mul_(1.0 / generation.size if share is None else share)
    all_reduce(generation, vector)


def broadcast(generation: Generation, tensor: Tensor, source: int = 0) -> None:
    """Overwrite a tensor with that of the member of rank `source`.

    Raises:
        GroupError: when a member is lost; the content of `tensor` is undefined then.
    """
    options = dist.BroadcastOptions()
    options.rootRank = source
    finish(generation, "broadcast", [tensor], options)


class InFlight:
    """A collective under way on tensors whose content is undefined until it has landed.

    Args:
        generation: who takes part.
        collective: its name in torch's process groups.
        work: its handle; None if it could not be started, and the generation has failed.
    """

    def __init__(self, generation: Generation, collective: str, work: dist.Work | None) -> None:
        self._generation, self._collective, self._work = generation, collective, work

    def wait(self) -> None:
        """Until it has landed.

        Raises:
            GroupError: when a member is lost; the content of the outputs is undefined then.
        """
        if self._work is not None:
            self._work.wait()
        expect_success(self._generation, self._collective)


def launch(generation: Generation, collective: str, outputs: list[Tensor], *arguments: object) -> InFlight:
    """Start a collective that writes into `outputs`; `arguments` are as torch's process groups want them."""
    try:
        work = getattr(generation.backend(outputs[0].is_cuda), collective)(*arguments)
    except RuntimeError as error:
        generation.health.fail(first_line(error))
        return InFlight(generation, collective, None)
    return InFlight(generation, collective, guard(work, generation.health, outputs))


def expect_success(generation: Generation, collective: str) -> None:
    if (failure := generation.agree(generation.failure)) is not None:
        raise GroupError(
            f"{collective} in generation {generation.prefix!r} among {generation.members} failed: {failure}"
        )


def finish(
    generation: Generation, collective: str, tensors: list[Tensor], options: object, lends: bool = False
) -> None:
    """Run a collective in the place of these tensors to its end; a failure ends the generation."""
    if offer := generation.in_memory(collective, tensors, options, lends):
        offer.run_now()
        expect_success(generation, collective)
    else:
        launch(generation, collective, tensors, tensors, options).wait()


def mean_gradients(
    generation: Generation, parameters: Sequence[nn.Parameter], share: float | None = None, adopts: bool = True
) -> None:
    """Average ``.grad`` as DistributedDataParallel would, without its buckets: one vector in the order of parameters.

    A parameter that got a gradient on some members counts as zero on the others; one that nobody used keeps None.

    Args:
        generation: who takes part.
        parameters: the same on every member.
        share: as of `mean`.
        adopts: whether this member's gradients become the mean.

    Raises:
        GroupError: when a member is lost; the gradients are unchanged then.
    """
    used, flat = used_and_joined(parameters)
    mean(generation, flat, share)
    all_reduce(generation, used)
    if adopts:
        give_gradients(parameters, flat, used)


def used_and_joined(parameters: Sequence[nn.Parameter]) -> tuple[Tensor, Tensor]:
    """Which parameters have a gradient, 1 or 0 each, and all gradients as one vector, in which they can be added up.

    Those of low precision are float32 in it.
    """
    used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
    joined = torch.cat([gradient_of(p).reshape(-1) for p in parameters])
    return used, joined if joined.dtype == torch.float64 else joined.float()


def give_gradients(parameters: Sequence[nn.Parameter], flat: Tensor, used: Tensor) -> None:
    """The reverse; what nobody used keeps None."""
    start = 0
    for parameter, users in zip(parameters, used.tolist(), strict=True):
        own = local_part(parameter)
        part = flat[start : start + own.numel()].view_as(own)
        start += own.numel()
        if parameter.grad is None:
            parameter.grad = part_of(parameter, part.to(parameter.dtype, copy=True)) if users else None
        elif parameter.grad.is_sparse:
            parameter.grad = part.to(parameter.dtype).to_sparse(parameter.grad.sparse_dim())
        else:
            local_part(parameter.grad).copy_(part)
