"""Who runs, who waits and what is pending, as a frozen value: what a policy that wraps others must know of their
doings.

It counts as `polyrhythm.core.Ledger` does, in samples, from the events and decisions that pass by.
"""

from dataclasses import dataclass, field, replace

from polyrhythm.core import Cancel, Decisions, Event, Exchange, Joined, Left, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap


@dataclass(frozen=True, slots=True)
class Place:
    """One live worker.

    Args:
        clock: its completed steps.
        running: the exchange of the step in flight.
        gradients: samples of each gradient that nobody has combined, oldest first.
        local: samples of its steps on its replica that no average has taken.
        latest: those of the last such step.
    """

    clock: int = 0
    running: Exchange | None = None
    gradients: tuple[int, ...] = ()
    local: int = 0
    latest: int = 0


@dataclass(frozen=True, slots=True)
class Roll:
    """All live workers, and `processed`, the samples whose gradients have been applied, to a replica or for all.

    >>> roll = Roll().after(Joined((0, 1), 0.0)).carry_out((Proceed((0, 1)),))
    >>> roll = roll.after(Report(1, clock=1, time_s=1.0, samples=8))
    >>> roll.running, roll.processed, roll.carry_out((Sync((1,)),)).processed
    (1, 0, 8)
    """

    places: WorkerMap[Place] = field(default_factory=WorkerMap)
    processed: int = 0
    running: int = 0

    def place(self, worker: int) -> Place:
        found = self.places.get(worker)
        assert found is not None, f"worker {worker} is not live"
        return found

    @property
    def workers(self) -> tuple[int, ...]:
        """Everyone who is live, ascending."""
        return tuple(self.places)

    @property
    def clock(self) -> int:
        return max((place.clock for _, place in self.places.items()), default=0)

    def after(self, event: Event) -> "Roll":
        match event:
            case Joined(workers=workers, clock=clock):
                return replace(self, places=self.places.set_all(workers, Place(clock)))
            case Report():
                return self._reported(event)
            case Left():
                return self._left(event)
            case _:
                return self

    def carry_out(self, decisions: Decisions) -> "Roll":
        roll = self
        for decision in decisions:
            match decision:
                case Sync():
                    roll = roll._combined(decision)
                case Proceed(workers=workers, exchange=exchange):
                    for worker in workers:
                        place = roll.place(worker)
                        started = Place(place.clock, exchange, place.gradients, place.local, place.latest)
                        roll = roll._with(worker, started, 1)
                case Cancel(workers=workers):
                    for worker in workers:
                        place = roll.place(worker)
                        stopped = -1 if place.running else 0
                        roll = roll._with(worker, replace(place, running=None, gradients=()), stopped)
        return roll

    def _with(self, worker: int, place: Place, started: int = 0, processed: int = 0) -> "Roll":
        return Roll(self.places.set(worker, place), self.processed + processed, self.running + started)

    def _reported(self, report: Report) -> "Roll":
        place, samples = self.place(report.worker), report.samples
        if place.running == "replicas":
            local = Place(report.clock, None, place.gradients, place.local + samples, samples)
            return self._with(report.worker, local, -1, samples)
        gradients = (*place.gradients, samples)
        return self._with(report.worker, Place(report.clock, None, gradients, place.local, place.latest), -1)

    def _left(self, left: Left) -> "Roll":
        """Who has finished has had all that was pending applied; who is gone has lost what only it had."""
        place = self.place(left.worker)
        change = sum(place.gradients) if left.reason == "finished" else -place.local
        running = self.running - (place.running is not None)
        return Roll(self.places.remove(left.worker), self.processed + change, running)

    def _combined(self, sync: Sync) -> "Roll":
        roll = self
        if sync.what == "gradients":
            for worker in sync.workers:
                roll = roll._took_gradient(worker)
            return roll
        for worker in sync.workers:
            roll = roll._with(worker, replace(roll.place(worker), local=0))
        for worker in sync.adopters or ():
            place = roll.place(worker)
            roll = roll._with(worker, replace(place, local=0), processed=-place.local)
        return roll

    def _took_gradient(self, worker: int) -> "Roll":
        place = self.place(worker)
        if not place.gradients:  # that of its latest step on its replica, which counts already
            return self._with(worker, replace(place, local=place.local - place.latest))
        oldest, *others = place.gradients
        left = Place(place.clock, place.running, tuple(others), place.local, place.latest)
        return self._with(worker, left, processed=oldest)
