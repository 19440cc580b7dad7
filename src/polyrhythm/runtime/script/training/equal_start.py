"""Whether all ranks of a script without DistributedDataParallel have made the same of their first step.

If they average gradients by hand they have. An ensemble, or local steps that the script averages later, has not: the
job would give all of them the mean, which nobody has asked for.
"""

import json
from collections.abc import Iterable
from itertools import islice

import torch
import torch.distributed as dist
from torch.optim import Optimizer

from polyrhythm.runtime.script.data.handed import told_by_all
from polyrhythm.runtime.script.notices import refuse
from polyrhythm.runtime.script.script_group import ScriptGroup

LOOKED_AT = 256
"""Parameters that are compared, by their first and their last number."""

RELATIVE, ABSOLUTE = 1e-5, 1e-7
"""By which they may differ: other processors round otherwise."""


def check_equal(optimizers: Iterable[Optimizer], training: int, place: str) -> None:
    """Refuse to exchange what differs; all ranks call this, and hear the same.

    Raises:
        RefusalError: if the ranks' parameters differ.
    """
    group = dist.group.WORLD
    if not isinstance(group, ScriptGroup):
        return
    key = f"first-step-{training}-rank-"
    group.store.set(f"{key}{group.rank()}", json.dumps(ends_of(optimizers)))
    if not (told := told_by_all(group, key)):
        return
    first, *others = (torch.tensor(json.loads(ends), dtype=torch.float64) for ends in told)
    for rank, other in enumerate(others, 1):
        if first.shape == other.shape and not torch.allclose(first, other, RELATIVE, ABSOLUTE, equal_nan=True):
            raise refuse(
                f"ranks 0 and {rank} have other parameters after their first step, and the job would make them equal; "
                "wrap the model in DistributedDataParallel, or start a script whose ranks train apart with torchrun",
                place,
            )


def ends_of(optimizers: Iterable[Optimizer]) -> list[float]:
    """The first and the last number of the first parameters."""
    parameters = (p for each in optimizers for part in each.param_groups for p in part["params"] if p.numel())
    ends = [p.detach().flatten()[:: max(1, p.numel() - 1)] for p in islice(parameters, LOOKED_AT)]
    return [float(number.real) for numbers in ends for number in numbers]
