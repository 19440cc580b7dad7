"""Who has the job's newest state between two phases: the servers, or which of the workers."""

from typing import Any

import msgspec

from polyrhythm.core import Policy
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.coordinator.job import Home, Job, Ranks, without
from polyrhythm.runtime.coordinator.phase_entry import PhaseEntry
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.coordinator.unsynchronised import UnsynchronisedSamples


class HoldersRecord(msgspec.Struct, frozen=True):
    """What a `StateHolders` knows between two events. Of `unsynchronised` positions, who has seen them."""

    home: Home
    contributors: Ranks
    holders: Ranks
    others: Ranks
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

    @property
    def record(self) -> HoldersRecord:
        """For a coordinator that follows this one."""
        noted = tuple((tuple(sorted(ranks)), tuple(ranges)) for ranks, ranges in self.unsynchronised.noted)
        return HoldersRecord(self.home, self._contributors, self._holders, self._others, noted)

    def take_up(self, record: HoldersRecord) -> None:
        """Go on from what another one knew."""
        self.home, self._contributors = record.home, record.contributors
        self._holders, self._others = record.holders, record.others
        self.unsynchronised.noted += [(set(ranks), ranges) for ranks, ranges in record.unsynchronised]

    def after(self, mode: PhaseKind, policy: Policy[Any], following: Policy[Any], members: tuple[int, ...]) -> None:
        """A phase ends between two steps, and another is to follow on whoever is present."""
        present = self._job.present
        if not mode.on_workers:
            mode.finish()
            self._contributors = self._holders = self._others = ()
            return
        old = tuple(worker for worker in present if worker in members)
        sound, newest = mode.sound, mode.newest
        apart = tuple(worker for worker in mode.apart if worker in present)
        self.unsynchronised.note(mode.unsynchronised())
        self.unsynchronised.note_of_all(newest, mode.of_newest())
        mode.finish()
        self._holders, self._others = newest or old, tuple(worker for worker in old if worker not in newest)
        if apart or ("replicas" in policy.traits.exchanges and "gradients" in following.traits.exchanges):
            # Each has an optimizer state of its own, from which one is to be made.
            self._contributors = apart or self._holders
        else:
            self._contributors = () if sound == present else self._holders[:1]

    def abandon(self, mode: PhaseKind, policy: Policy[Any], entry: PhaseEntry | None) -> None:
        """Nobody stands in the epoch any more; the phase was under way, or being entered."""
        if entry is not None:
            self.not_entered(entry)
            return
        if mode.on_workers:
            mode.take_back()
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
        return whole or self._alive(self._others) or self._job.present[:1]

    def ends_if_lost(self) -> bool:
        """End a job that has made samples, if nobody who is present has its parameters; whether it did."""
        known, present = {*self._contributors, *self._holders, *self._others}, self._job.present
        if self.home != "workers" or not self._job.samples or not known.isdisjoint(present):
            return False
        self._job.effects.give_up(
            f"all workers that had the job's parameters are gone, and the workers {present} came too late to get them; "
            "with --checkpoint the same command goes on from the newest one"
        )
        return True

    def _alive(self, workers: tuple[int, ...]) -> tuple[int, ...]:
        present = self._job.present
        return tuple(worker for worker in workers if worker in present)

    def forget(self, worker: int) -> None:
        """It is gone, and what a rank that comes back has is not what it had."""
        self._contributors = without(worker, self._contributors)
        self._holders, self._others = without(worker, self._holders), without(worker, self._others)
        self.unsynchronised.forget(worker)

    def kept(self, contributors: tuple[int, ...]) -> None:
        """The job goes back to a state that these have kept."""
        self.home, self._contributors = "workers", contributors
        self.unsynchronised.settle()

    def entered(self, on_workers: bool, inside: set[int]) -> None:
        """All who are inside a phase have the state, and the servers if its policy needs them."""
        self.home = "workers" if on_workers else "servers"
        self._contributors, self._holders, self._others = (), tuple(sorted(inside)), ()
        self.unsynchronised.settle()

    def not_entered(self, entry: PhaseEntry) -> None:
        """Not all members have come to the state, but whoever was inside has it."""
        if inside := sorted(entry.inside.intersection(self._job.present)):
            self._contributors, self._holders = (inside[0],), tuple(inside)
            self.unsynchronised.taken_over(inside)
        self.unsynchronised.revoke()
