"""What a job shows of itself while any policy is in force: how long steps and exchanges take."""

from dataclasses import dataclass, field, replace
from statistics import fmean, median
from typing import NamedTuple

from polyrhythm.core import Cancel, Decisions, Event, Joined, Left, Proceed, Report, Sync
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies._lib.dealing.contention import UNKNOWN, Transfers
from polyrhythm.policies._lib.dealing.step_time import StepTime
from polyrhythm.policies._lib.epochs import still_known
from polyrhythm.policies.auto.outlook import StepView

ROWS = 24
"""Latest steps of each worker that predictions replay."""

LEAST_ROWS = 3
"""Steps of each worker before which nothing is predicted."""

UNTIMED = 2
"""First steps of a worker that do not count; see `polyrhythm.policies.balanced`."""

EXCHANGES = 9
"""Latest exchanges whose median counts."""


class LatestStep(NamedTuple):
    """Samples, seconds, seconds with B samples, and of its transfers."""

    samples: int = 0
    step_s: float = 0.0
    whole_s: float = 0.0
    transfer_s: float = 0.0


NO_STEP = LatestStep()


@dataclass(frozen=True, slots=True)
class WorkerTimes:
    """One worker.

    Args:
        begun: steps since it joined, as far as they are not timed.
        time: of its steps.
        steps: seconds of its latest steps as if each had had B samples, oldest first.
        since_s: when its step in flight began; None while it waits.
        latest: its latest step.
        transfers: under equal shares and under unequal ones.
    """

    begun: int = 0
    time: StepTime = field(default_factory=StepTime)
    steps: tuple[float, ...] = ()
    since_s: float | None = None
    latest: LatestStep = NO_STEP
    transfers: Transfers = UNKNOWN

    def exchanged(self, uneven: bool) -> "WorkerTimes":
        """Its latest step was part of a round of all."""
        transfers = self.transfers.after(self.latest.transfer_s, uneven)
        return WorkerTimes(self.begun, self.time, self.steps, self.since_s, self.latest, transfers)


@dataclass(frozen=True, slots=True)
class JobTimes:
    """All that is measured.

    Args:
        batch_size: B.
        workers: who is live, or has finished its epoch.
        processed: samples of all reports.
        slowest_s: longest step since the last exchange of all.
        round_s: when that was; None if nothing follows from it.
        exchanges: seconds of the latest exchanges of all.
        message_s: of the transfers of a step that meets nobody, mean of the latest; 0 before there is one.
        reports: since the job began.
        least: smallest share that balanced BSP may deal.
        live: who is.
    """

    batch_size: int
    workers: WorkerMap[WorkerTimes] = field(default_factory=WorkerMap)
    processed: int = 0
    slowest_s: float = 0.0
    round_s: float | None = None
    exchanges: tuple[float, ...] = ()
    message_s: float = 0.0
    reports: int = 0
    least: int = 1
    live: WorkerMap[bool] = field(default_factory=WorkerMap)

    def resumed(self) -> "JobTimes":
        """Nobody is there yet; who comes is known by what was measured of it before."""
        workers = self.workers
        for worker, seen in self.workers.items():
            workers = workers.set(worker, replace(seen, begun=0, since_s=None))
        return replace(self, workers=workers, slowest_s=0.0, round_s=None, live=WorkerMap())

    def after(self, event: Event, alone: bool) -> "JobTimes":
        """What an event tells; `alone` says that a worker's transfers are its own, and no part of a round."""
        match event:
            case Report():
                return self._reported(event, alone)
            case Joined():
                return self._joined(event)
            case Left(worker=worker):
                known = still_known(self.workers, event, len(self.live))
                return replace(self, workers=known, round_s=None, live=self.live.remove(worker))
            case _:
                return self

    def _joined(self, joined: Joined) -> "JobTimes":
        """Where another policy comes into force all who are there join once more."""
        anew = any(worker in self.live for worker in joined.workers)
        live: WorkerMap[bool] = WorkerMap() if anew else self.live
        known = still_known(self.workers, joined, len(live))
        for worker in joined.workers:
            known = known.set(worker, replace(known.get(worker) or WorkerTimes(), begun=0, since_s=None))
        return replace(self, workers=known, round_s=None, live=live.set_all(joined.workers, True))

    def _reported(self, report: Report, alone: bool) -> "JobTimes":
        worker, samples = report.worker, report.samples
        seen, whole_s = self.workers.get(worker) or WorkerTimes(), report.step_s
        begun, time, steps = seen.begun, seen.time, seen.steps
        if begun < UNTIMED:
            begun += 1
        else:
            time = time.after(samples, report.step_s)
            if samples != self.batch_size:
                whole_s *= time.expected_s(self.batch_size) / max(time.expected_s(samples), 1e-12)
            steps = (*steps[-ROWS + 1 :], whole_s)
        latest = LatestStep(samples, report.step_s, whole_s, report.transfer_s)
        seen = WorkerTimes(begun, time, steps, None, latest, seen.transfers)
        message_s = self.message_s
        if alone:
            message_s = report.transfer_s if not message_s else message_s + (report.transfer_s - message_s) / 32
        return JobTimes(
            self.batch_size,
            self.workers.set(worker, seen),
            self.processed + samples,
            max(self.slowest_s, report.step_s),
            self.round_s,
            self.exchanges,
            message_s,
            self.reports + 1,
            self.least,
            self.live,
        )

    def decided(self, decisions: Decisions, time_s: float) -> "JobTimes":
        """What was decided tells who runs since when, and what a round of all has taken."""
        seen = self
        for decision in decisions:
            match decision:
                case Sync():
                    seen = seen._exchanged(decision, time_s)
                case Proceed(workers=workers):
                    for worker in workers:
                        if (one := seen.workers.get(worker)) is not None:
                            one = WorkerTimes(one.begun, one.time, one.steps, time_s, one.latest, one.transfers)
                            seen = replace(seen, workers=seen.workers.set(worker, one))
                case Cancel(workers=workers):
                    seen = seen._cancelled(workers, time_s)
        return seen

    def _exchanged(self, sync: Sync, time_s: float) -> "JobTimes":
        """A round of all on the global parameters: what one of BSP would have taken beyond its slowest step."""
        whole = sync.what == "gradients" and len(sync.workers) == len(self.workers)
        exchanges, workers = self.exchanges, self.workers
        if whole and self.round_s is not None:
            uneven = len({one.latest.samples for _, one in workers.items()}) > 1
            for worker, one in workers.items():
                workers = workers.set(worker, one.exchanged(uneven))
            round_s = time_s - self.round_s
            exchange_s = equal_exchange_s(workers, round_s) if uneven else round_s - self.slowest_s
            exchanges = (*exchanges[-EXCHANGES + 1 :], max(0.0, exchange_s))
        return replace(self, workers=workers, exchanges=exchanges, slowest_s=0.0, round_s=time_s if whole else None)

    @property
    def exchange_s(self) -> float:
        """Of a round, as far as it is known."""
        return median(self.exchanges) if self.exchanges else 0.0

    def _cancelled(self, workers: tuple[int, ...], time_s: float) -> "JobTimes":
        """A step that was abandoned would have taken as long as those of its worker that take longer than it had."""
        known = self.workers
        for worker in workers:
            one = known.get(worker)
            if one is None or one.since_s is None:
                continue
            had_s = time_s - one.since_s
            longer = [step_s for step_s in one.steps if step_s > had_s]
            likely_s = fmean(longer) if longer else had_s
            time = one.time if one.time.steps else one.time.after(self.batch_size, likely_s)
            known = known.set(worker, replace(one, time=time, steps=(*one.steps[-ROWS + 1 :], likely_s), since_s=None))
        return replace(self, workers=known)

    @property
    def view(self) -> StepView | None:
        """What can be predicted from; None before everyone has made some steps."""
        each = [one for _, one in self.workers.items()]
        count = min((len(one.steps) for one in each), default=0)
        if count < LEAST_ROWS:
            return None
        # What was before a change tells nothing of what comes.
        count = min(count, max(LEAST_ROWS, round(min(one.time.steps for one in each))))
        steps = [one.steps[-count:] for one in each]
        exchange_s = self.exchange_s
        times, message_s = [one.time for one in each], self.message_s or self._likely_message_s(steps)
        return StepView(steps, times, self.batch_size, exchange_s, message_s, self.least, self.message_s > 0)

    def _likely_message_s(self, steps: list[tuple[float, ...]]) -> float:
        """As long as nobody has exchanged alone: a part of the exchange of all, as far as links are not busy with the
        others' parts. It may be longer; the first trial shows it.
        """
        exchange_s = self.exchange_s
        return max(exchange_s / len(steps), exchange_s - min(fmean(each) for each in steps))

    def late(self) -> str:
        """Who is slower than the median, in words: at most a few, from the slowest on.

        >>> seen = JobTimes(8)
        >>> for worker, step_s in enumerate((1.0, 1.0, 3.9)):
        ...     seen = JobTimes(8, seen.workers.set(worker, WorkerTimes(time=StepTime(sample_s=step_s / 8))))
        >>> seen.late()
        'rank 2 is 3.9x slower'
        """
        expected = {worker: one.time.expected_s(self.batch_size) for worker, one in self.workers.items()}
        usual_s = sorted(expected.values())[(len(expected) - 1) // 2] if expected else 0.0
        late = [worker for worker, step_s in expected.items() if step_s > LATE * usual_s > 0]
        if not late:
            return ""
        factor = fmean(expected[worker] for worker in late) / usual_s
        names = ", ".join(map(str, late[:NAMED])) + (", ..." if len(late) > NAMED else "")
        return f"rank {names} is {factor:.1f}x slower" if len(late) == 1 else f"ranks {names} are {factor:.1f}x slower"


LATE = 1.15
"""Factor on the median from which a worker is named."""

NAMED = 6
"""Ranks that a line names."""


def equal_exchange_s(workers: WorkerMap[WorkerTimes], round_s: float) -> float:
    """What a round in unequal shares, which took so long, would have taken beyond its slowest step in equal ones."""
    each = [(one.latest, one.transfers.extra_s) for _, one in workers.items()]
    beyond_s = round_s - max(latest.step_s + latest.transfer_s for latest, _ in each)
    bsp_s = max(latest.whole_s + latest.transfer_s - extra_s for latest, extra_s in each)
    return bsp_s + beyond_s - max(latest.whole_s for latest, _ in each)
