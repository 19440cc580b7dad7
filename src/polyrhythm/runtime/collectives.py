"""Collectives of the session itself: averages over flat vectors, gradients without buckets.

Unlike those that DistributedDataParallel starts, these raise: their caller knows what to do. One operation moves a
whole vector; cutting it in chunks made gloo slower at every size (two and four processes, 0.3 to 44 MB).
"""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.runtime.epoch import Epoch, GroupError
from polyrhythm.runtime.verdict import first_line
from polyrhythm.runtime.work import guard


def all_reduce(epoch: Epoch, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> None:
    """Combine the members' tensors in place; equal bits on every member.

    Raises:
        GroupError: when a member is lost; the content of `tensor` is undefined then.
    """
    if sums := epoch.sums_for([tensor], op):
        sums.sum_now([tensor])
        expect_success(epoch, "allreduce")
    else:
        launch_reduction(epoch, tensor, op).wait()


def launch_reduction(epoch: Epoch, tensor: Tensor, op: ReduceOp.RedOpType = ReduceOp.SUM) -> "Flight":
    """Start to combine the members' tensors in place."""
    if sums := epoch.sums_for([tensor], op):
        return Flight(epoch, "allreduce", sums.start([tensor]))
    options = dist.AllreduceOptions()
    options.reduceOp = ReduceOp(op)
    return launch(epoch, "allreduce", [tensor], [tensor], options)


class UnderWay(Protocol):
    """Something that arrives in the place of tensors."""

    def wait(self) -> None:
        """Until it is there; raises `GroupError` when a member is lost."""


Launch: TypeAlias = Callable[[Epoch, Tensor, bool], UnderWay]
"""Starts to sum up the members' float32 vectors in place; the flag says that this member's is all zeros."""


def launch_sum(epoch: Epoch, tensor: Tensor, zero: bool) -> UnderWay:
    """A `Launch` that reduces from worker to worker; zeros travel as well."""
    del zero
    return launch_reduction(epoch, tensor)


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


class Flight:
    """A collective under way on tensors whose content is undefined until it has landed.

    Args:
        epoch: who takes part.
        collective: its name in torch's process groups.
        work: its handle; None if it could not be started, and the epoch has failed.
    """

    def __init__(self, epoch: Epoch, collective: str, work: dist.Work | None) -> None:
        self._epoch, self._collective, self._work = epoch, collective, work

    def wait(self) -> None:
        """Until it has landed.

        Raises:
            GroupError: when a member is lost; the content of the outputs is undefined then.
        """
        if self._work is not None:
            self._work.wait()
        expect_success(self._epoch, self._collective)


def launch(epoch: Epoch, collective: str, outputs: list[Tensor], *arguments: object) -> Flight:
    """Start a collective that writes into `outputs`; `arguments` are as torch's process groups want them."""
    try:
        work = getattr(epoch.backend(outputs[0].is_cuda), collective)(*arguments)
    except RuntimeError as error:
        epoch.verdict.fail(first_line(error))
        return Flight(epoch, collective, None)
    return Flight(epoch, collective, guard(work, epoch.verdict, outputs))


def expect_success(epoch: Epoch, collective: str) -> None:
    """Raise `GroupError` if the epoch has failed."""
    if epoch.failure is not None:
        raise GroupError(f"{collective} in epoch {epoch.prefix!r} among {epoch.members} failed: {epoch.failure}")


def finish(epoch: Epoch, collective: str, outputs: list[Tensor], *arguments: object) -> None:
    """Run a collective that writes into `outputs` to its end; a failure ends the epoch."""
    launch(epoch, collective, outputs, *arguments).wait()


def mean_gradients(
    epoch: Epoch, parameters: Sequence[nn.Parameter], share: float | None = None, adopts: bool = True
) -> None:
    """Average ``.grad`` as DistributedDataParallel would, without its buckets: one vector in the order of parameters.

    A parameter that got a gradient on some members counts as zero on the others; one that nobody used keeps None.

    Args:
        epoch: who takes part.
        parameters: the same on every member.
        share: as of `mean`.
        adopts: whether this member's gradients become the mean.

    Raises:
        GroupError: when a member is lost; the gradients are unchanged then.
    """
    used = torch.tensor([float(p.grad is not None) for p in parameters], device=parameters[0].device)
    flat = torch.cat([torch.zeros_like(p).view(-1) if p.grad is None else p.grad.reshape(-1) for p in parameters])
    mean(epoch, flat, share)
    all_reduce(epoch, used)
    if not adopts:
        return
    start = 0
    for parameter, users in zip(parameters, used.tolist(), strict=True):
        part = flat[start : start + parameter.numel()].view_as(parameter)
        start += parameter.numel()
        if parameter.grad is not None:
            parameter.grad.copy_(part)
        elif users:
            parameter.grad = part.clone()
