"""What a job does when a worker says that training has diverged: it ends, or goes back and on under BSP.

Every worker keeps its state at the start of the last two epochs. The job goes back to the later one if that lies before
the losses in which the divergence was seen, otherwise to the other. Then BSP makes the epoch that is under way from its
start; what else was made since the state was kept is lost, and counted. A job goes back once, and not with TLS, which
does not cover what BSP exchanges.
"""

import logging
from copy import deepcopy
from dataclasses import dataclass

import msgspec

from polyrhythm.core.workload import Workload, WorkloadState
from polyrhythm.runtime.coordinator.job import Job, Ranks, workload_of
from polyrhythm.runtime.wire.protocol import Diverged, Ended, Ready
from polyrhythm.runtime.wire.tls.cover import covered
from polyrhythm.training.divergence import LossWatch

log = logging.getLogger(__name__)

UNSURE = 2 * LossWatch().window
"""Mini-batches of a worker, before its divergence is seen, in which the state may be bad already."""


@dataclass(frozen=True, slots=True)
class Start:
    """Where the job stood when an epoch began, and who was there to keep the state."""

    epoch: int
    workload: Workload
    samples: int
    skipped_samples: int
    keepers: frozenset[int]


class StartRecord(msgspec.Struct, frozen=True):
    """A `Start` in a record."""

    epoch: int
    workload: WorkloadState
    samples: int
    skipped_samples: int
    keepers: Ranks


class RollbackRecord(msgspec.Struct, frozen=True):
    """What a `Rollback` knows between two events: the `goal` is one of the starts, by its index."""

    starts: tuple[StartRecord, ...] = ()
    goal: int | None = None
    tried: bool = False
    over: bool = False
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
        self._tried = self._over = False

    @property
    def record(self) -> RollbackRecord:
        """For a coordinator that follows this one."""
        starts = tuple(
            StartRecord(each.epoch, each.workload.state(), each.samples, each.skipped_samples, tuple(each.keepers))
            for each in self._starts
        )
        goal = None if self._goal is None else [each.epoch for each in self._starts].index(self._goal.epoch)
        return RollbackRecord(starts, goal, self._tried, self._over, self._job.trouble)

    def take_up(self, record: RollbackRecord, ready: Ready) -> None:
        """Go on from what another one knew; of the workers' data `ready` tells."""
        self._starts = [start_of(each, ready) for each in record.starts]
        self._goal = None if record.goal is None else self._starts[record.goal]
        self._tried, self._over, self._job.trouble = record.tried, record.over, record.trouble

    @property
    def goes_back(self) -> bool:
        return self._goal is not None

    @property
    def epoch(self) -> int | None:
        """The epoch at whose start that state was kept; None if the next phase is like any other."""
        return None if self._goal is None else self._goal.epoch

    def begin_epoch(self, members: tuple[int, ...]) -> None:
        """An epoch begins, and nothing of it has been handed out; `members` have the job's state, at first everyone."""
        job = self._job
        keepers = frozenset(members or job.present).intersection(job.present)
        start = Start(job.epoch, deepcopy(job.workload), job.samples, job.skipped_samples, keepers)
        self._starts = [*self._starts[-1:], start]

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
        self._goal, self._tried = self._choose(), True
        return True

    def go_back(self) -> tuple[int, ...]:
        """Put the job where the epoch under way began: the rank whose kept state all go on from, if there is one."""
        goal, here, job = self._goal, self._starts[-1], self._job
        assert goal is not None, "there is a state to go back to"
        keepers = sorted(goal.keepers.intersection(job.present))
        if not keepers:
            self._goal = None
            self._end()
            return ()
        if job.samples > here.samples:  # a second attempt, when the first keeper is gone, finds nothing more
            job.rolled_back_samples += job.samples - goal.samples
            job.trouble += f": went back to the start of epoch {goal.epoch}, and on under bsp"
            log.warning("%s; %d samples are lost", job.trouble, job.rolled_back_samples)
        job.workload = deepcopy(here.workload)
        job.samples, job.skipped_samples = here.samples, here.skipped_samples
        return (keepers[0],)

    def arrived(self) -> None:
        """The members have agreed on the state that was kept, if there is one: the phase is like any other."""
        self._goal = None

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


def start_of(record: StartRecord, ready: Ready) -> Start:
    workload = workload_of(ready)
    workload.go_on(record.workload)
    return Start(record.epoch, workload, record.samples, record.skipped_samples, frozenset(record.keepers))
