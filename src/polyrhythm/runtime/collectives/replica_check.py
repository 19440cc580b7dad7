"""Whether replicas that should be equal are: a few numbers of each, compared now and then."""

import contextlib
import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import ReduceOp
from torch.optim import Optimizer

from polyrhythm.errors import GroupError, ReplicasDifferError
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import all_reduce
from polyrhythm.training.flat import local_part

LOOKED_AT = 4096
"""Elements of each parameter that are looked at, at most."""

TOLERANCE = 1e-3
"""Distance that is none. Devices of different kinds round the same step differently: by 1e-7 a step, which adds up
like a random walk.
"""


class Spread(NamedTuple):
    """How far the members are apart: `distance` as a share of the norm, and the ranges of the groups' rates.

    `distance` is infinite if numbers are finite on some members and not on others.
    """

    distance: float
    rates: tuple[tuple[float, float], ...]


def check_equal(generation: Generation, parameters: Sequence[Tensor], optimizer: Optimizer) -> None:
    """Compare the parameters of all members; all of them call this, and all come to the same answer.

    Args:
        generation: who takes part.
        parameters: this member's; all have as many of the same shapes.
        optimizer: its learning rates say what may be wrong.

    Raises:
        ReplicasDifferError: if they are further apart than rounding explains.
        GroupError: when a member is lost.
    """
    if generation.size == 1:
        return
    refuse_apart(generation, spread(generation, parameters, optimizer))


def refuse_apart(generation: Generation, found: Spread) -> None:
    """The same, of what all members have found."""
    if found.distance <= TOLERANCE:
        return
    with contextlib.suppress(GroupError):  # nobody leaves the group before all have the answer
        all_reduce(generation, torch.zeros(1))
    apart = [f"{low:g} to {high:g}" for low, high in found.rates if low != high]
    why = f"their learning rates are {apart[0]}" if apart else "they make different optimizer steps"
    finite = math.isfinite(found.distance)
    far = f"{100 * found.distance:.2g} % of their norm apart" if finite else "finite on some and not on others"
    raise ReplicasDifferError(
        f"the parameters of workers that should be equal are {far}: {why}; make each step the same on every rank"
    )


def spread(generation: Generation, parameters: Sequence[Tensor], optimizer: Optimizer) -> Spread:
    """What is compared is linear in the parameters, so that a difference shows at its size: a part of each times random
    numbers. A mere sum is blind where gradients add up to nothing, as those of a softmax's input do.

    Of numbers that are not finite, only how many there are is compared: one of them would make any sum equal to none.

    Raises:
        GroupError: when a member is lost.
    """
    parts = [looked_at(parameter) for parameter in parameters]
    finite = [torch.where(part.isfinite(), part, 0.0) for part in parts]
    sums, squares = (torch.stack([f(part) for part in finite]).cpu() for f in (weighted_sum, squared))
    lost = torch.stack([(~part.isfinite()).sum() for part in parts]).double().cpu()
    rates = torch.tensor([float(group.get("lr", 0.0)) for group in optimizer.param_groups], dtype=torch.float64)
    compared = torch.cat([sums, lost])
    ends = torch.cat([compared, -compared, rates, -rates, squares.sum()[None]])
    all_reduce(generation, ends, ReduceOp.MAX)
    most, least, highest, lowest, norm = torch.split(ends, [len(compared)] * 2 + [len(rates)] * 2 + [1])
    gaps, unlike = torch.split(most + least, len(sums))
    distance = math.sqrt(gaps.square().sum().item() / max(norm.item(), torch.finfo(torch.float32).tiny))
    ranges = tuple(zip((-lowest).tolist(), highest.tolist(), strict=True))
    return Spread(math.inf if unlike.any() else distance, ranges)


def looked_at(parameter: Tensor) -> Tensor:
    part = local_part(parameter.detach())
    flat = part.reshape(-1) if part.is_contiguous() or part.dim() == 0 else part[0].reshape(-1)
    seen = flat[:LOOKED_AT]
    return (torch.view_as_real(seen).reshape(-1) if seen.is_complex() else seen).double()


def weighted_sum(part: Tensor) -> Tensor:
    return part @ weights(part.device)[: len(part)]


@functools.cache
def weights(device: torch.device) -> Tensor:
    """The same on all members, with a mean square of 1; a complex number has two."""
    numbers = torch.rand(2 * LOOKED_AT, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    return ((2.0 * numbers - 1.0) * math.sqrt(3.0)).to(device)


def squared(part: Tensor) -> Tensor:
    return part.square().sum()
