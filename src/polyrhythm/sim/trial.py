"""A simulated job goes back to where a trial began, if a policy that chooses others asks for it.

What was learned since is lost, but not the time that it took. Its samples are handed out again, as far as they are of
the epoch under way: as on real workers, whose scripts do not begin an epoch twice.
"""

from copy import deepcopy
from typing import TYPE_CHECKING, Any, NamedTuple

from polyrhythm.core import Supervisor
from polyrhythm.core.workload import Workload
from polyrhythm.sim.clock import Reminder

if TYPE_CHECKING:
    from polyrhythm.sim.engine import Engine


class TrialStart(NamedTuple):
    """What had been learned and processed, and what is handed out again."""

    learned: Any
    samples: int
    workload: Workload


def follow_switch(engine: "Engine") -> None:
    """Another policy is in force, and nobody has a step under way."""
    supervisor, state = engine.policy, engine.driver.state
    if not isinstance(supervisor, Supervisor):
        return
    if supervisor.keeps(state):
        engine.trial = TrialStart(engine.numerics.keep(), engine.meter.samples, deepcopy(engine.workload))
    elif engine.trial is not None and supervisor.goes_back(state):
        go_back(engine, engine.trial)
        engine.trial = None


def follow_epoch(engine: "Engine") -> None:
    """Another epoch begins; what is left of those before it nobody processes any more."""
    if engine.trial is not None:
        engine.trial = engine.trial._replace(workload=deepcopy(engine.workload))


def go_back(engine: "Engine", start: TrialStart) -> None:
    engine.numerics.go_back(start.learned)
    engine.meter.rolled_back_samples += engine.meter.samples - start.samples
    engine.meter.samples = start.samples
    waiting, engine.retired = tuple(sorted(set(engine.retired))), []
    if waiting:  # for the end of the epoch, which has come farther away
        engine.calendar.at(engine.calendar.now_s, engine.begin_epoch, Reminder(waiting))
    engine.workload = start.workload
    for worker in range(engine.job.cluster.workers):
        if worker not in engine.worker_states:
            engine.workload.leave(worker)
    engine.workload.join(engine.worker_states)
