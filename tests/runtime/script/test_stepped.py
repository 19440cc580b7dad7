"""Which calls of a scheduler follow the job, by fakes of the job."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    SequentialLR,
)

from polyrhythm.runtime.script.schedulers import Schedules

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")  # no optimizer makes a step here

Make = Callable[[Optimizer], LRScheduler]


@dataclass
class Job:
    """What a job tells of its progress."""

    apart: bool = False
    reached: int = 0


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def schedules(job: Job, monkeypatch: pytest.MonkeyPatch) -> Schedules:
    for kind in (LRScheduler, *LRScheduler.__subclasses__()):
        for name in {"__init__", "step"} & set(vars(kind)):
            monkeypatch.setattr(kind, name, vars(kind)[name])
    made = Schedules(lambda: job.apart, lambda: job.reached)
    made.patch()
    return made


def optimizer() -> Optimizer:
    return SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.4)


def sequence(steps: Optimizer) -> SequentialLR:
    return SequentialLR(steps, [LinearLR(steps, 0.1, 1, 4), CosineAnnealingLR(steps, 20, 0.01)], [4])


def chain(steps: Optimizer) -> ChainedScheduler:
    return ChainedScheduler([CosineAnnealingLR(steps, 20, 0.01), ExponentialLR(steps, 0.9)])


def nested(steps: Optimizer) -> ChainedScheduler:
    return ChainedScheduler([sequence(steps), ExponentialLR(steps, 0.9)])


def by_itself(make: Make, calls: int) -> float:
    """The rate of a scheduler after so many calls without a job."""
    alone = make(steps := optimizer())
    for _ in range(calls):
        alone.step()
    return rate(steps)


def rate(steps: Optimizer) -> float:
    return float(steps.param_groups[0]["lr"])


@pytest.mark.parametrize("make", [sequence, nested, chain])
def test_a_scheduler_of_several_follows_the_job_as_one(job: Job, schedules: Schedules, make: Make) -> None:
    schedules.left_alone = True
    expected = [by_itself(make, calls) for calls in (1, 3, 4, 9, 11)]
    schedules.left_alone = False
    composite = make(steps := optimizer())
    composite.step()
    schedules.settle(stretched=False)
    job.apart, rates = True, [rate(steps)]
    for job.reached in (2, 3, 8):
        schedules.stepped()
        composite.step()
        rates.append(rate(steps))
    job.reached = 10
    schedules.follow()
    assert [*rates, rate(steps)] == expected
