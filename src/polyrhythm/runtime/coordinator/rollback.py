"""How a job goes back to a state that its workers have kept.

**A divergence.** A worker says that training has diverged: the job ends, or goes back and on under BSP.
Every worker keeps its state at the start of the last two epochs. The job goes back to the later one if that lies before
the losses in which the divergence was seen, otherwise to the other. Then BSP makes the epoch that is under way from its
start; what else was made since the state was kept is lost, and counted. A job goes back once, and not with TLS, which
does not cover what BSP exchanges.

**A trial.** A policy that chooses others may ask for the state to be kept where one of them comes into force, and for
the job to go back there. That is between two steps, so what is made anew is the rest of the epoch from there on, or the
epoch that has begun since.
"""

import logging
from copy import deepcopy
from dataclasses import dataclass

import msgspec

from polyrhythm.core.workload import Workload, WorkloadState
from polyrhythm.runtime.coordinator.job import Job, workload_of
from polyrhythm.runtime.coordinator.members.member import Ranks
from polyrhythm.runtime.wire.protocol import Diverged, Ended, Ready
from polyrhythm.runtime.wire.tls.cover import covered
from polyrhythm.training.divergence import LossWatch

log = logging.getLogger(__name__)

UNSURE = 2 * LossWatch().window
"""Mini-batches of a worker, before its divergence is seen, in which the state may be bad already."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the job stood when an epoch or a trial began, and who was there to keep the state.

    `epoch` is what the state was kept as: of a trial, the number of its phase below 0.
    """

    epoch: int
    workload: Workload
    samples: int
    skipped_samples: int
    keepers: set[int]


class StartRecord(msgspec.Struct, frozen=True):
    """A `Start` in a record."""

    epoch: int
    workload: WorkloadState
    samples: int
    skipped_samples: int
    keepers: Ranks


class RollbackRecord(msgspec.Struct, frozen=True):
    """What a `Rollback` knows between two events: the `goal` is one of the starts or the trial, by its epoch."""

    starts: tuple[StartRecord, ...] = ()
    trial: StartRecord | None = None
    goal: int | None = None
    tried: bool = False
    over: bool = False
    counted: bool = False
    trouble: str = ""


class Rollback:
    """Remembers the starts of epochs, and which of them the job goes back to.

    Args:
        job: that may diverge.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._starts: list[Start] = []
        self._goal: Start | None = None
        self._trial: Start | None = None
        self._tried = self._over = self._counted = False

    @property
    def record(self) -> RollbackRecord:
        """For a coordinator that follows this one."""
        starts, trial = tuple(map(record_of, self._starts)), None if self._trial is None else record_of(self._trial)
        return RollbackRecord(starts, trial, self.epoch, self._tried, self._over, self._counted, self._job.trouble)

    def take_up(self, record: RollbackRecord, ready: Ready) -> None:
        """Go on from what another one knew; of the workers' data `ready` tells."""
        self._starts = [start_of(each, ready) for each in record.starts]
        self._trial = None if record.trial is None else start_of(record.trial, ready)
        known = {each.epoch: each for each in self._known}
        self._goal = None if record.goal is None else known[record.goal]
        self._tried, self._over, self._counted = record.tried, record.over, record.counted
        self._job.trouble = record.trouble

    @property
    def goes_back(self) -> bool:
        return self._goal is not None

    @property
    def epoch(self) -> int | None:
        """What that state was kept as; None if the next phase is like any other."""
        return None if self._goal is None else self._goal.epoch

    def begin_epoch(self, members: tuple[int, ...]) -> None:
        """An epoch begins, and nothing of it has been handed out; `members` have the job's state, at first everyone."""
        job = self._job
        keepers = {*(members or job.present)}.intersection(job.present)
        self._starts = [*self._starts[-1:], self._here(job.epoch, keepers)]
        if self._goal not in (None, self._trial, *self._starts):  # all have left the epoch; that state is gone
            self._goal = self._starts[0]

    def begin_trial(self, phase: int, keeps: bool) -> None:
        """A phase begins; if it is a trial, all who are present keep the state that they have."""
        if keeps:
            self._trial = self._here(-phase, {*self._job.present})

    def keeps(self, phase: int) -> bool:
        """Whether the state is kept in a phase."""
        return self._trial is not None and self._trial.epoch == -phase

    def end_trial(self, undone: bool) -> None:
        """A phase is over; if that undoes a trial, all are to go back to where it began, as far as that was kept."""
        if undone and self._trial is not None and not self._over and not self.goes_back:
            self._goal, self._counted = self._trial, False

    def forget(self, worker: int) -> None:
        """It is gone, and a rank that comes back has kept nothing."""
        for start in self._known:
            start.keepers.discard(worker)

    @property
    def _known(self) -> list[Start]:
        return [*self._starts, *([self._trial] if self._trial else [])]

    def _here(self, epoch: int, keepers: set[int]) -> Start:
        job = self._job
        return Start(epoch, deepcopy(job.workload), job.samples, job.skipped_samples, keepers)

    def diverged(self, worker: int, message: Diverged, in_phase: bool) -> bool:
        """A worker has seen it: whether all are to stop and go back; otherwise they have been told that it is over.

        `in_phase` says that the phase is under way in which it was seen.
        """
        if self._over or self.goes_back or (self._tried and not in_phase):
            return False
        self._job.trouble = f"the loss of rank {worker} {message.why}"
        if not message.rollback or self._tried or not in_phase or not self._starts or covered():
            self._end()
            return False
        self._goal, self._tried, self._counted = self._choose(), True, False
        return True

    def go_back(self) -> tuple[int, ...]:
        """Put the job where the epoch under way began: the rank whose kept state all go on from, if there is one."""
        goal, job = self._goal, self._job
        assert goal is not None, "there is a state to go back to"
        here = max(self._starts[-1], goal, key=lambda start: start.samples)
        keepers = sorted(goal.keepers.intersection(job.present))
        if not keepers:
            self._goal = None
            self._lost_for_good(goal)
            return ()
        if not self._counted:  # a second attempt, when the first keeper is gone, finds nothing more
            self._counted = True
            lost = job.samples - goal.samples
            job.rolled_back_samples += lost
            self._tell(goal, lost)
        job.workload = deepcopy(here.workload)
        job.samples, job.skipped_samples = here.samples, here.skipped_samples
        return (keepers[0],)

    def arrived(self) -> None:
        """The members have agreed on the state that was kept, if there is one: the phase is like any other."""
        if self._goal is self._trial:
            self._trial = None
        self._goal = None

    def _tell(self, goal: Start, lost: int) -> None:
        if goal is self._trial:
            log.warning("went back to where the trial began; %d samples are lost", lost)
            return
        self._job.trouble += f": went back to the start of epoch {goal.epoch}, and on under bsp"
        log.warning("%s; %d samples are lost", self._job.trouble, self._job.rolled_back_samples)

    def _lost_for_good(self, goal: Start) -> None:
        """Nobody who has kept the state is left."""
        if goal is self._trial:
            self._trial = None
            log.warning("nobody is left who has kept what was before the trial; the job goes on from what it has made")
        else:
            self._end()

    def _choose(self) -> Start:
        """The latest start that lies before the losses in doubt; without one, the earliest that is known."""
        job = self._job
        unsure = UNSURE * job.cluster(1).batch_size * len(job.present)
        sure = [start for start in self._starts if start.samples + unsure <= job.samples]
        return sure[-1] if sure else self._starts[0]

    def _end(self) -> None:
        self._over = True
        self._job.trouble += f": diverged after {self._job.samples} samples"
        log.warning("%s", self._job.trouble)
        for worker in self._job.members:
            self._job.effects.send(worker, Ended(self._job.trouble))


def record_of(start: Start) -> StartRecord:
    here = start.workload.state(), start.samples, start.skipped_samples
    return StartRecord(start.epoch, *here, tuple(sorted(start.keepers)))


def start_of(record: StartRecord, ready: Ready) -> Start:
    workload = workload_of(ready)
    workload.go_on(record.workload)
    return Start(record.epoch, workload, record.samples, record.skipped_samples, {*record.keepers})
