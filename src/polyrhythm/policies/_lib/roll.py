"""Who runs, who waits and what is pending, as a frozen value: what a policy that wraps others must know of their
doings.

It counts as `polyrhythm.core.Ledger` does, in samples, from the events and decisions that pass by.
"""

from dataclasses import dataclass, field, replace

from polyrhythm.core import Cancel, Decisions, Event, Exchange, Joined, Left, Proceed, Report, Stopped, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies._lib.epochs import still_known


@dataclass(frozen=True, slots=True)
class LiveWorker:
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

    `away` has those that have finished their epoch, and come back with the next one; see `epochs`.

    >>> roll = Roll().after(Joined((0, 1), 0.0)).carry_out((Proceed((0, 1)),))
    >>> roll = roll.after(Report(1, clock=1, time_s=1.0, samples=8))
    >>> roll.running, roll.processed, roll.carry_out((Sync((1,)),)).processed
    (1, 0, 8)
    """

    live_workers: WorkerMap[LiveWorker] = field(default_factory=WorkerMap)
    processed: int = 0
    running: int = 0
    away: WorkerMap[bool] = field(default_factory=WorkerMap)

    def live_worker(self, worker: int) -> LiveWorker:
        found = self.live_workers.get(worker)
        assert found is not None, f"worker {worker} is not live"
        return found

    @property
    def workers(self) -> tuple[int, ...]:
        """Everyone who is live, ascending."""
        return tuple(self.live_workers)

    @property
    def present(self) -> frozenset[int]:
        """Who is live, or comes back with the next epoch."""
        return frozenset((*self.live_workers, *self.away))

    def is_back(self, joined: Joined, workers: frozenset[int]) -> bool:
        """Whether these workers and no others, of whom all had finished, begin another epoch."""
        return not self.live_workers and workers == frozenset(joined.workers)

    @property
    def clock(self) -> int:
        return max((live_worker.clock for _, live_worker in self.live_workers.items()), default=0)

    def after(self, event: Event) -> "Roll":
        match event:
            case Joined(workers=workers, clock=clock):
                away = still_known(self.away, event, len(self.live_workers))
                for worker in workers:
                    away = away.remove(worker)
                return replace(self, live_workers=self.live_workers.set_all(workers, LiveWorker(clock)), away=away)
            case Report():
                return self._reported(event)
            case Left():
                return self._left(event)
            case Stopped(worker=worker):
                return self.carry_out((Cancel((worker,)),))
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
                        live_worker = roll.live_worker(worker)
                        started = LiveWorker(
                            live_worker.clock, exchange, live_worker.gradients, live_worker.local, live_worker.latest
                        )
                        roll = roll._with(worker, started, 1)
                case Cancel(workers=workers):
                    for worker in workers:
                        live_worker = roll.live_worker(worker)
                        stopped = -1 if live_worker.running else 0
                        roll = roll._with(worker, replace(live_worker, running=None, gradients=()), stopped)
        return roll

    def _with(self, worker: int, live_worker: LiveWorker, started: int = 0, processed: int = 0) -> "Roll":
        live_workers = self.live_workers.set(worker, live_worker)
        return Roll(live_workers, self.processed + processed, self.running + started, self.away)

    def _reported(self, report: Report) -> "Roll":
        live_worker, samples = self.live_worker(report.worker), report.samples
        if live_worker.running == "replicas":
            local = LiveWorker(report.clock, None, live_worker.gradients, live_worker.local + samples, samples)
            return self._with(report.worker, local, -1, samples)
        gradients = (*live_worker.gradients, samples)
        return self._with(
            report.worker, LiveWorker(report.clock, None, gradients, live_worker.local, live_worker.latest), -1
        )

    def _left(self, left: Left) -> "Roll":
        """Who has finished has had all that was pending applied; who is gone has lost what only it had."""
        live_worker = self.live_worker(left.worker)
        finished = left.reason == "finished"
        change = sum(live_worker.gradients) if finished else -live_worker.local
        running = self.running - (live_worker.running is not None)
        away = self.away.set(left.worker, True) if finished else self.away
        return Roll(self.live_workers.remove(left.worker), self.processed + change, running, away)

    def _combined(self, sync: Sync) -> "Roll":
        roll = self
        if sync.what == "gradients":
            for worker in sync.workers:
                roll = roll._took_gradient(worker)
            return roll
        for worker in sync.workers:
            roll = roll._with(worker, replace(roll.live_worker(worker), local=0))
        for worker in sync.adopters or ():
            live_worker = roll.live_worker(worker)
            roll = roll._with(worker, replace(live_worker, local=0), processed=-live_worker.local)
        return roll

    def _took_gradient(self, worker: int) -> "Roll":
        live_worker = self.live_worker(worker)
        if not live_worker.gradients:  # that of its latest step on its replica, which counts already
            return self._with(worker, replace(live_worker, local=live_worker.local - live_worker.latest))
        oldest, *others = live_worker.gradients
        left = LiveWorker(live_worker.clock, live_worker.running, tuple(others), live_worker.local, live_worker.latest)
        return self._with(worker, left, processed=oldest)
