"""What goes wrong in a run: workers that are slow for a while, that leave, and that join later.

A fault is keyed by virtual time or by a worker's own count of started steps, stated one by one or drawn from a seed.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import inf
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np

from polyrhythm.errors import ScenarioError
from polyrhythm.sim.cluster.units import Count, Factor, Index, Seconds, SecondsOrEver

WorkerList = Annotated[list[Index], msgspec.Meta(min_length=1)]

FAULTS_STREAM = 1_000_003
"""Sets the random stream of the faults apart from those of the workers."""


class Straggler(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Workers that are slow for a while; whether a step or a message is slow is settled when it starts."""

    workers: WorkerList
    """Who."""

    start_s: Seconds | None = None
    """From when, in virtual time; give this or `start_step`."""

    duration_s: SecondsOrEver = inf
    """For how long, if it starts at a time."""

    start_step: Index | None = None
    """From which of the worker's own steps, counted from 0; give this or `start_s`."""

    steps: Count | None = None
    """For how many steps, if it starts at a step; none: to the end."""

    slowdown: Factor = 1.0
    """Factor on the time of computing."""

    extra_compute_s: Seconds = 0.0
    """Seconds more in each computation."""

    extra_latency_s: Seconds = 0.0
    """Seconds more on each message that the worker sends or receives."""

    def __post_init__(self) -> None:
        exactly_one("stragglers", "start_s", self.start_s, "start_step", self.start_step)
        if self.start_s is not None and self.steps is not None:
            raise ScenarioError(f"stragglers.steps goes with start_step but got steps {self.steps} and start_s")
        if self.start_step is not None and self.duration_s != inf:
            raise ScenarioError(f"stragglers.duration_s goes with start_s but got {self.duration_s} and start_step")


class RandomStragglers(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Stragglers drawn from the seed: who they are, and when each of their slow times starts."""

    workers: Count
    """How many different workers straggle."""

    occurrences: Count = 1
    """How often each of them does."""

    duration_s: Seconds
    """How long each time."""

    from_s: Seconds = 0.0
    """A slow time starts evenly between this ..."""

    to_s: Seconds
    """... and this."""

    slowdown: Factor = 1.0
    """Factor on the time of computing."""

    extra_compute_s: Seconds = 0.0
    """Seconds more in each computation."""

    extra_latency_s: Seconds = 0.0
    """Seconds more on each message that the worker sends or receives."""

    def __post_init__(self) -> None:
        ordered("random_stragglers", self.from_s, self.to_s)


class Leave(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A worker goes, with what it has in flight."""

    worker: Index
    """Who."""

    time_s: Seconds | None = None
    """When; give this or `step`."""

    step: Index | None = None
    """As soon as it starts this of its own steps, counted from 0; give this or `time_s`."""

    reason: Literal["died", "hung", "removed"] = "died"
    """What the policy is told."""

    back_after_s: Seconds | None = None
    """It joins again so much later; none: never."""

    def __post_init__(self) -> None:
        exactly_one("leaves", "time_s", self.time_s, "step", self.step)


class Join(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A worker that is not there from the start."""

    worker: Index
    """Who; one of the devices' workers."""

    time_s: Seconds
    """When it joins."""


class RandomLeaves(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Workers drawn from the seed that leave, and come back if so stated."""

    workers: Count
    """How many different workers leave."""

    from_s: Seconds = 0.0
    """Each leaves evenly between this ..."""

    to_s: Seconds
    """... and this."""

    reason: Literal["died", "hung", "removed"] = "died"
    """What the policy is told."""

    back_after_s: Seconds | None = None
    """They join again so much later; none: never."""

    def __post_init__(self) -> None:
        ordered("random_leaves", self.from_s, self.to_s)


class Faults(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """All that goes wrong; nothing by default."""

    stragglers: list[Straggler] = []
    """Slow times that are stated."""

    random_stragglers: list[RandomStragglers] = []
    """Slow times that are drawn."""

    leaves: list[Leave] = []
    """Workers that leave."""

    random_leaves: list[RandomLeaves] = []
    """Workers drawn that leave."""

    joins: list[Join] = []
    """Workers that come later."""

    def check(self, workers: int) -> None:
        """Everyone who is named is one of so many workers."""
        named = {
            "stragglers": {worker for straggler in self.stragglers for worker in straggler.workers},
            "leaves": {leave.worker for leave in self.leaves},
            "joins": {join.worker for join in self.joins},
        }
        for table, them in named.items():
            if them and max(them) >= workers:
                raise ScenarioError(
                    f"faults.{table}: there is no worker {max(them)}; the {workers} workers are 0 to {workers - 1}"
                )
        drawn = [("random_stragglers", item.workers) for item in self.random_stragglers]
        drawn += [("random_leaves", item.workers) for item in self.random_leaves]
        for table, count in drawn:
            if count > workers:
                raise ScenarioError(f"faults.{table}.workers must be at most {workers} but got {count}")
        if len({join.worker for join in self.joins}) == workers:
            raise ScenarioError("faults.joins names every worker, but a job starts with at least one; leave one out")


class Slow(NamedTuple):
    """One slow time of one worker, from `start` to `stop` (exclusive) in seconds or in own steps."""

    by_step: bool
    start: float
    stop: float
    slowdown: float
    extra_compute_s: float
    extra_latency_s: float

    def holds(self, now_s: float, step: int) -> bool:
        return self.start <= (step if self.by_step else now_s) < self.stop


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """The faults of one run: slow times by worker, and who leaves."""

    slow: dict[int, tuple[Slow, ...]] = field(default_factory=dict)
    leaves: tuple[Leave, ...] = ()
    joins: tuple[Join, ...] = ()


def plan(faults: Faults, workers: int, seed: int) -> FaultPlan:
    rng = np.random.default_rng(np.random.SeedSequence((seed, FAULTS_STREAM)))
    slow: dict[int, list[Slow]] = {}
    stated = [(worker, slow_time(item)) for item in faults.stragglers for worker in item.workers]
    drawn = [pair for item in faults.random_stragglers for pair in drawn_slow_times(item, workers, rng)]
    for worker, time in stated + drawn:
        slow.setdefault(worker, []).append(time)
    leaves = [*faults.leaves, *(leave for item in faults.random_leaves for leave in drawn_leaves(item, workers, rng))]
    return FaultPlan({worker: tuple(times) for worker, times in slow.items()}, tuple(leaves), tuple(faults.joins))


def slow_time(item: Straggler) -> Slow:
    effect = (item.slowdown, item.extra_compute_s, item.extra_latency_s)
    if item.start_step is not None:
        return Slow(True, item.start_step, item.start_step + (item.steps or inf), *effect)
    assert item.start_s is not None
    return Slow(False, item.start_s, item.start_s + item.duration_s, *effect)


def drawn_slow_times(item: RandomStragglers, workers: int, rng: np.random.Generator) -> Iterator[tuple[int, Slow]]:
    for worker in rng.choice(workers, item.workers, replace=False).tolist():
        for start_s in np.sort(rng.uniform(item.from_s, item.to_s, item.occurrences)).tolist():
            effect = (item.slowdown, item.extra_compute_s, item.extra_latency_s)
            yield worker, Slow(False, start_s, start_s + item.duration_s, *effect)


def drawn_leaves(item: RandomLeaves, workers: int, rng: np.random.Generator) -> Iterator[Leave]:
    for worker in rng.choice(workers, item.workers, replace=False).tolist():
        time_s = float(rng.uniform(item.from_s, item.to_s))
        yield Leave(worker=worker, time_s=time_s, reason=item.reason, back_after_s=item.back_after_s)


def exactly_one(table: str, first: str, one: object, second: str, other: object) -> None:
    if (one is None) == (other is None):
        raise ScenarioError(f"faults.{table} needs {first} or {second}, and not both")


def ordered(table: str, from_s: float, to_s: float) -> None:
    if to_s < from_s:
        raise ScenarioError(f"faults.{table}.to_s must be at least from_s = {from_s} but got {to_s}")
