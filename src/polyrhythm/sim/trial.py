"""A simulated job goes back to where a trial began, if a policy that chooses others asks for it.

What was learned since is lost, but not the time that it took. Its samples are handed out again, as far as they are of
the epoch under way: as on real workers, whose scripts do not begin an epoch twice.
"""

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple, Protocol

from polyrhythm.core import Driver, Policy, Supervisor
from polyrhythm.core.driver import says
from polyrhythm.core.workload import SampleRange, Workload
from polyrhythm.sim.clock import Calendar, Reminder
from polyrhythm.sim.job import SimJob
from polyrhythm.sim.numerics import Numerics
from polyrhythm.sim.worker import WorkerState
from polyrhythm.telemetry import Meter


class TrialStart(NamedTuple):
    """What had been learned and processed, and what is handed out again."""

    learned: Any
    samples: int
    workload: Workload


class Run(Protocol):
    """What an `Engine` has that a trial is about."""

    job: SimJob
    driver: Driver
    numerics: Numerics
    meter: Meter
    calendar: Calendar
    workload: Workload
    worker_states: dict[int, WorkerState]
    at_end: dict[int, Sequence[SampleRange]]
    trial: TrialStart | None

    @property
    def policy(self) -> Policy[Any]: ...

    @property
    def begin_epoch(self) -> Callable[[Reminder], None]: ...


def follow_switch(engine: Run) -> None:
    """Another policy is in force, and nobody has a step under way."""
    supervisor, state = engine.policy, engine.driver.state
    if not isinstance(supervisor, Supervisor):
        return
    if says(supervisor, "keeps", state):
        engine.trial = TrialStart(engine.numerics.keep(), engine.meter.samples, deepcopy(engine.workload))
    elif engine.trial is not None and says(supervisor, "goes_back", state):
        go_back(engine, engine.trial)
        engine.trial = None


def follow_epoch(engine: Run) -> None:
    """Another epoch begins; what is left of those before it nobody processes any more."""
    if engine.trial is not None:
        engine.trial = engine.trial._replace(workload=deepcopy(engine.workload))


def go_back(engine: Run, start: TrialStart) -> None:
    engine.numerics.go_back(start.learned)
    engine.meter.rolled_back_samples += engine.meter.samples - start.samples
    engine.meter.samples = start.samples
    engine.at_end = dict.fromkeys(engine.at_end, ())
    if engine.at_end:  # which has come farther away
        engine.calendar.at(engine.calendar.now_s, engine.begin_epoch, Reminder(None))
    engine.workload = start.workload
    for worker in range(engine.job.cluster.workers):
        if worker not in engine.worker_states:
            engine.workload.leave(worker)
    engine.workload.join(engine.worker_states)
