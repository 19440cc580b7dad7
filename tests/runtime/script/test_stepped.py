"""Which calls of a scheduler follow the job, and which are refused, by fakes of the job."""

import re
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import torch
from torch.optim import SGD, Optimizer
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    CosineAnnealingLR,
    CosineAnnealingWarmRestarts,
    ExponentialLR,
    LinearLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
    SequentialLR,
)

from polyrhythm.errors import RefusalError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.script.schedulers import MOST_BEYOND, Schedules
from polyrhythm.runtime.script.training.objections import Objections

pytestmark = pytest.mark.filterwarnings("ignore:Detected call of")  # no optimizer makes a step here

Make = Callable[[Optimizer], LRScheduler]


@dataclass
class Job:
    """What a job tells of its progress."""

    apart: bool = False
    reached: int = 0
    together: bool = False
    inside: bool = True
    later: bool = False
    switched: str = ""


@pytest.fixture
def job() -> Job:
    return Job()


@pytest.fixture
def objections(job: Job) -> Objections:
    return Objections(lambda: job.later, lambda: job.switched)


@pytest.fixture
def schedules(job: Job, objections: Objections, monkeypatch: pytest.MonkeyPatch) -> Schedules:
    for kind in (LRScheduler, *LRScheduler.__subclasses__()):
        for name in {"__init__", "step"} & set(vars(kind)):
            monkeypatch.setattr(kind, name, vars(kind)[name])
    batch = lambda: (job.reached, job.inside)  # noqa: E731
    in_loop = lambda: job.inside  # noqa: E731
    made = Schedules(lambda: job.apart, lambda: job.reached, lambda: job.together, batch, in_loop, objections)
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


def followed(schedules: Schedules, stretched: bool = False) -> ExponentialLR:
    """One that was stepped with the warm-up step."""
    made = ExponentialLR(optimizer(), 0.5)
    made.step()
    schedules.settle(stretched)
    return made


def test_while_ranks_step_together_each_call_is_a_step(job: Job, schedules: Schedules) -> None:
    """Also a second one after an epoch, and one that comes after steps without."""
    scheduler, job.together, ends = followed(schedules), True, []
    for job.reached, calls in ((1, 1), (2, 2), (3, 0), (4, 1)):
        schedules.meet(job.reached - 1)
        schedules.stepped()
        for _ in range(calls):
            scheduler.step()
        ends.append(scheduler.last_epoch)
    assert ends == [2, 4, 4, 5]


def test_a_further_call_after_an_epoch_is_one_step_beside_those_that_follow_the_job(
    job: Job, schedules: Schedules
) -> None:
    scheduler, job.apart, job.reached = followed(schedules), True, 3
    schedules.stepped()
    scheduler.step()
    schedules.follow()
    job.apart = job.inside = False
    scheduler.step()
    assert scheduler.last_epoch == 5


def test_a_further_call_within_an_epoch_is_refused_where_workers_step_apart(job: Job, schedules: Schedules) -> None:
    scheduler, job.apart, job.reached = followed(schedules), True, 3
    schedules.stepped()
    scheduler.step()
    with pytest.raises(RefusalError, match=r"more than once a step; .* Step it once a step, or use bsp"):
        scheduler.step()


def test_of_a_script_for_a_single_process_a_further_call_steps_for_all_workers(job: Job, schedules: Schedules) -> None:
    scheduler = followed(schedules, stretched=True)
    for job.reached in (2, 4):
        schedules.stepped()
        scheduler.step()
    scheduler.step()
    assert scheduler.last_epoch == 7


def fraction(steps: Optimizer) -> LRScheduler:
    return CosineAnnealingWarmRestarts(steps, 2)


STEPPED_BY = {ReduceLROnPlateau: "Step it once an epoch", fraction: "Step it once a step without arguments"}


@pytest.mark.parametrize(("make", "remedy"), STEPPED_BY.items())
def test_a_call_by_an_argument_is_refused_where_workers_step_apart(
    job: Job, schedules: Schedules, make: Make, remedy: str
) -> None:
    scheduler = make(optimizer())
    scheduler.step(0.5)  # type: ignore[arg-type]
    schedules.settle(stretched=False)
    scheduler.step(0.75)  # type: ignore[arg-type]
    job.apart = True
    with pytest.raises(RefusalError, match=rf"\.step with an argument inside the step loop; .*{remedy}"):
        scheduler.step(1)
    job.switched = "asp"
    with pytest.raises(
        RefusalError, match=rf"{remedy}.* \(the switch to asp came before the script had done this, and"
    ):
        scheduler.step(1)
    job.apart = False
    scheduler.step(1)
    assert isinstance(scheduler, ReduceLROnPlateau) or scheduler.last_epoch == 1


@pytest.mark.parametrize("arguments", [(), (0.5,)])
def test_what_a_later_part_of_the_policy_refuses_is_refused_before_half_of_the_work(
    job: Job, schedules: Schedules, arguments: tuple[float, ...]
) -> None:
    scheduler = fraction(optimizer())
    schedules.settle(stretched=False)
    scheduler.step(*arguments)  # type: ignore[arg-type]
    job.later = True
    said = "inside the step loop.*; workers that make steps of their own, as in a later part of the policy, would each"
    with pytest.raises(RefusalError, match=said):
        scheduler.step(*arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "calls", "said"),
    [
        ((0.5,), 1, "with an argument inside the step loop"),
        ((), 1, "inside the step loop, but not with every step"),
        ((), 2, "inside the step loop, and more than once a step"),
    ],
)
def test_what_a_script_does_while_ranks_step_together_stands_against_steps_of_their_own(
    job: Job, schedules: Schedules, objections: Objections, arguments: tuple[float, ...], calls: int, said: str
) -> None:
    job.together, job.inside = True, False
    scheduler = fraction(optimizer())
    if calls == 2:
        scheduler.step()
    schedules.settle(stretched=False)
    job.reached = 1
    for _ in range(calls):
        scheduler.step(*arguments)  # type: ignore[arg-type]
    assert objections.to(parse_policy("asp")) == "", "it is not in the loop"
    job.reached, job.inside = 2, True
    for _ in range(calls):
        scheduler.step(*arguments)  # type: ignore[arg-type]
    line = objections.to(parse_policy("switch:bsp@0.5,asp"))
    assert re.match(rf"\S+test_stepped.py:\d+: CosineAnnealingWarmRestarts.step {said}; workers that", line)
    assert objections.to(parse_policy("local:4")) == ""
    objections.begin_again()
    assert objections.to(parse_policy("asp")) == ""


def test_a_call_by_none_is_one_without_an_argument(job: Job, schedules: Schedules) -> None:
    scheduler = fraction(optimizer())
    scheduler.step(None)
    schedules.settle(stretched=False)
    job.apart, job.reached = True, 5
    schedules.stepped()
    scheduler.step(epoch=None)
    assert scheduler.last_epoch == 6


def test_a_schedule_that_is_too_short_fails_as_by_itself_but_not_for_what_is_counted_too_much(
    job: Job, schedules: Schedules
) -> None:
    scheduler = OneCycleLR(optimizer(), 0.1, total_steps=4)
    scheduler.step()
    schedules.settle(stretched=False)
    job.apart = True
    for job.reached in range(1, 4 + MOST_BEYOND):
        schedules.stepped()
        scheduler.step()
    assert scheduler.last_epoch == 4
    job.reached += 1
    schedules.stepped()
    with pytest.raises(ValueError, match="The specified number of total steps is 4"):
        scheduler.step()


def test_what_a_scheduler_calls_within_its_own_step_is_not_judged(job: Job, schedules: Schedules) -> None:
    class Outer(LRScheduler):
        def __init__(self, steps: Optimizer) -> None:
            self.inner = fraction(steps)
            super().__init__(steps)

        def step(self, epoch: int | None = None) -> None:
            self.last_epoch += 1
            self.inner.step(self.last_epoch)

    outer = Outer(optimizer())
    outer.step()
    schedules.settle(stretched=False)
    job.apart, job.reached = True, 3
    schedules.stepped()
    outer.step()
    assert outer.last_epoch == outer.inner.last_epoch == 4
