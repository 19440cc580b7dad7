"""Who has the job's newest state between two phases: the servers, or which of the workers."""

import logging
from collections.abc import Callable, Iterable
from typing import Any, Literal, TypeAlias

import msgspec

from polyrhythm.core import LeftReason, Policy
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Ranks, without
from polyrhythm.runtime.coordinator.phase_entry import PhaseEntry
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.unsynchronised import UnsynchronisedSamples
from polyrhythm.runtime.wire.protocol import EpochDone, Ready, Refused, StateFlow

log = logging.getLogger(__name__)

Home: TypeAlias = Literal["start", "workers", "servers"]
"""Who holds the newest parameters: each worker its own initial ones, the workers, or the servers."""

UNKNOWN_THERE = "with the parameters that it began with; what it saves or evaluates there is not the job's"
"""Said of a newcomer where only the other workers have the state, which it gets when it meets them."""


def flow_of(home: Home, on_servers: bool) -> StateFlow:
    """How the state comes to where a phase needs it.

    >>> flow_of("start", True), flow_of("servers", True), flow_of("servers", False), flow_of("workers", False)
    ('upload', 'keep', 'pull', 'keep')
    """
    if on_servers == (home == "servers"):
        return "keep"
    return "upload" if on_servers else "pull"


def intersection(ranks: Ranks, there: Ranks) -> Ranks:
    """Those of the ranks that are there.

    >>> intersection((0, 1, 3), (3, 2, 1))
    (1, 3)
    """
    return tuple(rank for rank in ranks if rank in there)


class HoldersRecord(msgspec.Struct, frozen=True):
    """What a `StateHolders` knows between two events. Of `unsynchronised` positions, who has seen them."""

    home: Home
    contributors: Ranks
    holders: Ranks
    others: Ranks
    early: Ranks
    given: Ranks
    abandoned: bool
    over: bool
    unsynchronised: tuple[tuple[Ranks, tuple[SampleRange, ...]], ...]


class StateHolders:
    """Follows the state from phase to phase.

    Args:
        job: whose state it is.

    Attributes:
        home: where the newest parameters are.
        unsynchronised: what only single replicas have seen.
    """

    def __init__(self, job: Job) -> None:
        self.home: Home = "start"
        self.unsynchronised = UnsynchronisedSamples(job)
        self._job = job
        self._contributors: tuple[int, ...] = ()
        self._holders: tuple[int, ...] = ()
        """Workers of which each has the whole state."""
        self._others: tuple[int, ...] = ()
        """Workers that have the most of it if all these are gone: the mean of their replicas."""
        self._early: tuple[int, ...] = ()
        """Workers that have the state of when they left the epoch before its end; the last one left last."""
        self._abandoned = False
        """Whether nobody has stood in the epoch since the last phase."""
        self._given: set[int] = set()
        """Workers that have had the state, or are about to get it."""
        self._told: set[int] = set()
        """Newcomers that pass epochs without the state."""
        self._waiting: list[int] = []
        """Newcomers after the last step of an epoch."""
        self._over = False
        """Whether somebody has come to the end of the script."""
        self._named: Ranks = ()
        """Of the early ones, whose state was said to be the job's: each newcomer asks for it anew."""

    @property
    def record(self) -> HoldersRecord:
        """For a coordinator that follows this one."""
        noted = tuple((tuple(sorted(ranks)), tuple(ranges)) for ranks, ranges in self.unsynchronised.noted)
        workers = self._contributors, self._holders, self._others, self._early, tuple(sorted(self._given))
        return HoldersRecord(self.home, *workers, self._abandoned, self._over, noted)

    def take_up(self, record: HoldersRecord) -> None:
        """Go on from what another one knew."""
        self.home, self._contributors = record.home, record.contributors
        self._holders, self._others, self._early = record.holders, record.others, record.early
        self._given.update(record.given)
        self._abandoned, self._over = record.abandoned, record.over
        self.unsynchronised.noted += [(set(ranks), ranges) for ranks, ranges in record.unsynchronised]

    def after(
        self, mode: PhaseKind, policy: Policy[Any], following: Callable[[], Policy[Any]], members: tuple[int, ...]
    ) -> None:
        """A phase ends between two steps, and another is to follow on whoever is present.

        Which policy is `following` is asked when it is known how many samples were made.
        """
        present = self._job.present
        if not mode.on_workers:
            mode.finish()
            self._contributors = self._holders = self._others = ()
            return
        # A rank that was lost between two epochs, of which the mode has not heard, may be back as a newcomer.
        old = intersection(present, members)
        sound, newest, apart = (intersection(ranks, old) for ranks in (mode.sound, mode.newest, mode.apart))
        self.unsynchronised.note(mode.unsynchronised())
        self.unsynchronised.note_of_all(newest, mode.of_newest())
        mode.finish()
        self._holders, self._others = newest or old, tuple(worker for worker in old if worker not in newest)
        if apart or ("replicas" in policy.traits.exchanges and "gradients" in following().traits.exchanges):
            # Each has an optimizer state of its own, from which one is to be made.
            self._contributors = apart or self._holders
        else:
            self._contributors = () if sound == present else self._holders[:1]

    def abandon(self, mode: PhaseKind, policy: Policy[Any], entry: PhaseEntry | None) -> None:
        """Nobody stands in the epoch any more; the phase was under way, or being entered."""
        self._abandoned = True
        if entry is not None:
            self.not_entered(entry)
            return
        if mode.on_workers:
            mode.take_back(self._early)
            self._holders = mode.newest
            self._contributors = mode.live if "replicas" in policy.traits.exchanges else mode.newest[:1]
            self.unsynchronised.note(mode.unsynchronised())
            self.unsynchronised.note_of_all(mode.newest, mode.of_newest())
        mode.finish()
        self.unsynchronised.revoke()

    def contributors(self, on_servers: bool, equal: bool) -> tuple[int, ...]:
        """Whose state the members of the next phase must agree on; nobody's if they are `equal` or do not need it.

        At first every worker has a state of its own, of which servers take one; later they have it themselves.
        """
        if self.home == "servers" or (on_servers and self.home == "start"):
            return ()
        if equal and not self._contributors:
            return ()
        whole = self._alive(self._contributors) or self._alive(self._holders)[:1]
        return whole or self._alive(self._others) or self._of_early() or self._job.present[:1]

    def lost(self, ranks: Iterable[int]) -> bool:
        """Whether a job that has made samples has its parameters with none of these."""
        known = {*self._contributors, *self._holders, *self._others, *self._early}
        return self.home == "workers" and bool(self._job.samples) and known.isdisjoint(ranks)

    def ends_if_lost(self) -> bool:
        """End a job whose parameters no worker has; whether it did."""
        if not self.lost(self._job.members):
            return False
        self._job.effects.give_up(
            "all workers that had the job's parameters are gone, and the workers "
            f"{sorted(self._job.members)} came too late to get them; "
            "with --checkpoint the same command goes on from the newest one"
        )
        return True

    def _alive(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        return intersection(workers, self._job.present)

    def _of_early(self) -> Ranks:
        """Whoever left last, if all who went on without it are gone."""
        left = self._alive(self._early)[-1:]
        if left and left != self._named:
            self._named = left
            log.warning(
                "all workers that went on are gone; the job goes on from what rank %d had when it left an epoch early, "
                "without what was made after that",
                *left,
            )
        return left

    @property
    def only_newcomers(self) -> bool:
        """Whether somebody is there, and nobody who has had the state."""
        return bool(self._job.members) and self._given.isdisjoint(self._job.members)

    def left_early(self, worker: int) -> None:
        """It has left the epoch, and keeps what it has until it enters another phase."""
        self._early, self._named = (*without(worker, self._early), worker), ()

    def give(self, workers: Ranks) -> None:
        """These are told of a phase, with which they get the state."""
        self._given.update(workers)

    def pass_by(self, worker: int, message: Ready) -> None:
        """No step of this epoch is left for a worker: a newcomer's loop starts at epoch 0, and runs through those that
        are over without a batch, but it must not end its script without the state.
        """
        if self._abandoned and self.ends_if_lost():
            return
        left, needs = self._job.workload.left, worker not in self._given and bool(self._job.samples)
        if message.epoch < self._job.epoch or not (left or needs):
            self._pass(worker, message.epoch)
            return
        where = "to what is left" if left else "after the last step"
        log.info("rank %d has come %s of epoch %d, and waits for the others", worker, where, message.epoch)
        self._job.members[worker].ready = message  # so the next one does not begin without it
        self._waiting.append(worker)
        self._refuse_if_over()

    def release(self) -> None:
        """Another epoch follows, in which newcomers get the state."""
        for worker in self._waiting:
            self._pass(worker, self._job.epoch)
        self._waiting.clear()

    def _pass(self, worker: int, epoch: int) -> None:
        """An epoch is over for a worker, perhaps a newcomer, whose script may save or evaluate before the next one."""
        comes = worker not in self._given and bool(self._job.samples)
        if comes and self.home == "workers" and worker not in self._told:
            self._told.add(worker)
            passed = self._job.epoch - epoch
            what = f"{passed} epochs that are" if passed > 1 else "an epoch that is"
            log.warning("rank %d passes %s over %s", worker, what, UNKNOWN_THERE)
        served = comes and self.home == "servers"
        self._job.effects.send(worker, EpochDone(epoch, self._job.version, served=served))

    def takes_waiting(self) -> bool:
        """Whether nobody is left but newcomers, who get what is on the servers in another phase of the same epoch.

        There they make what is left of it, unless each reads data of its own.
        """
        alone = bool(self._waiting) and len(self._waiting) == len(self._job.members)
        if alone:
            self._waiting.clear()
            if self._job.own_data:
                self._job.skip_rest()
        return alone

    def _refuse_if_over(self) -> None:
        """Newcomers wait in vain if no epoch follows."""
        if self._over:
            for worker in self._waiting:
                reason = "a worker is through with its script, and it has come too late to get the job's parameters"
                self._job.effects.send(worker, Refused(reason))
            self._waiting.clear()

    def forget(self, worker: int, reason: LeftReason) -> None:
        """It is gone, and what a rank that comes back has is not what it had."""
        self._contributors = without(worker, self._contributors)
        self._holders, self._others = without(worker, self._holders), without(worker, self._others)
        self._early = without(worker, self._early)
        self.unsynchronised.forget(worker)
        self._given.discard(worker)
        self._told.discard(worker)
        self._waiting = [other for other in self._waiting if other != worker]
        self._over |= reason == "finished"
        self._refuse_if_over()

    def kept(self, contributors: tuple[int, ...]) -> None:
        """The job goes back to a state that these have kept."""
        self.home, self._contributors = "workers", contributors
        self.unsynchronised.settle()

    def entered(self, on_workers: bool, inside: set[int]) -> None:
        """All who are inside a phase have the state, and the servers if its policy needs them."""
        self.home = "workers" if on_workers else "servers"
        self._abandoned = False
        self._contributors, self._holders, self._others = (), tuple(sorted(inside)), ()
        self._early = tuple(worker for worker in self._early if worker not in inside)
        self.unsynchronised.settle()

    def not_entered(self, entry: PhaseEntry) -> None:
        """Not all members have come to the state, but whoever was inside has it."""
        if inside := sorted(entry.inside.intersection(self._job.present)):
            self._contributors, self._holders = (inside[0],), tuple(inside)
            self.unsynchronised.taken_over(inside)
        self.unsynchronised.revoke()
