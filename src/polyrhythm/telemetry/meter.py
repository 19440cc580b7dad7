"""Measures a run while it happens: what the simulator and the runtime feed with events, updates and transfers, and
read a result from.
"""

from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from polyrhythm.core import Exchange, Ledger, Report, Sync
from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm.telemetry.stragglers import Stragglers


@dataclass(slots=True)
class Activity:
    """What one worker has done so far.

    Args:
        pending: staleness of its gradients that nobody combined yet.
        local: whether its last step was on its replica, and no exchange has followed.
    """

    joined_s: float = 0.0
    live_s: float = 0.0
    compute_s: float = 0.0
    transfer_s: float = 0.0
    steps: int = 0
    pending: deque[int] = field(default_factory=deque)
    local: bool = False

    @property
    def idle_s(self) -> float:
        """Time in which the worker was live and did nothing; rounding may not make it negative."""
        return max(0.0, self.live_s - self.compute_s - self.transfer_s)


@dataclass(slots=True)
class Meter:
    """Running totals of one run; a step costs a few additions.

    Args:
        target: accuracy on the test set whose first crossing is timed.
        updates: changes of the global parameters.
        samples: samples whose contribution is in the parameters, or in a live replica.
        switches: changes of the policy in force.
        rolled_back_samples: samples that were lost when the job went back.
        bytes_pushed, bytes_pulled: messages that arrived, counted by the driver.
        local_steps: steps on a replica that no exchange followed at once.
        policy_figures: see `Policy.figures`.
    """

    target: float | None = None
    updates: int = 0
    samples: int = 0
    switches: int = 0
    rolled_back_samples: int = 0
    bytes_pushed: float = 0.0
    bytes_pulled: float = 0.0
    local_steps: int = 0
    policy_figures: dict[str, float] = field(default_factory=dict)
    activities: dict[int, Activity] = field(default_factory=dict)
    live: set[int] = field(default_factory=set)
    staleness: Counter[int] = field(default_factory=Counter)
    curve: list[EvalPoint] = field(default_factory=list)
    stragglers: Stragglers = field(default_factory=Stragglers)

    def join(self, workers: Iterable[int], time_s: float) -> None:
        """Workers are live from now on; those that stood at the end of an epoch go on."""
        for worker in workers:
            if worker in self.live:
                self.stragglers.stand((worker,), time_s)
                continue
            self.activities.setdefault(worker, Activity()).joined_s = time_s
            self.live.add(worker)
            self.stragglers.join(worker, time_s)

    def leave(self, worker: int, time_s: float) -> None:
        activity = self.activities[worker]
        activity.live_s += time_s - activity.joined_s
        activity.pending.clear()
        self.live.remove(worker)
        self.stragglers.leave(worker)

    def report(self, report: Report, exchange: Exchange) -> None:
        activity = self.activities[report.worker]
        activity.steps += 1
        activity.compute_s += report.step_s
        activity.transfer_s += report.transfer_s
        self.stragglers.report(report)
        if exchange == "gradients":
            activity.pending.append(report.staleness)
        else:
            self.local_steps += 1
        activity.local = exchange == "replicas"

    def busy(self, worker: int, compute_s: float = 0.0, transfer_s: float = 0.0) -> None:
        """Time spent on what no report tells: a step that was abandoned, or a closing transfer."""
        activity = self.activities[worker]
        activity.compute_s += compute_s
        activity.transfer_s += transfer_s

    def sync(self, sync: Sync) -> None:
        self.updates += 1
        for worker in sync.workers:
            activity = self.activities[worker]
            if sync.what == "gradients" and activity.pending:
                self.staleness[activity.pending.popleft()] += 1
            else:
                self._met(activity)
        for worker in sync.adopters or ():
            self._met(self.activities[worker])

    def _met(self, activity: Activity) -> None:
        self.local_steps -= activity.local
        activity.local = False

    def cancel(self, worker: int) -> None:
        self.activities[worker].pending.clear()

    def evaluated(self, time_s: float, accuracy: float, loss: float, replica_accuracy: float | None = None) -> None:
        self.curve.append(EvalPoint(time_s, self.samples, self.updates, accuracy, loss, replica_accuracy))

    @property
    def reached(self) -> EvalPoint | None:
        if self.target is None:
            return None
        return next((point for point in self.curve if point.accuracy >= self.target), None)

    def finish(self, result: RunResult, ledger: Ledger, time_s: float) -> RunResult:
        result.arrivals = self.stragglers.arrivals()
        for worker in sorted(self.live):
            self.leave(worker, time_s)
        result.duration_s = time_s
        result.samples, result.updates, result.switches = self.samples, self.updates, self.switches
        result.rolled_back_samples += self.rolled_back_samples
        result.samples_per_s = self.samples / time_s if time_s else 0.0
        result.bytes_pushed, result.bytes_pulled = round(self.bytes_pushed), round(self.bytes_pulled)
        result.bytes_total = result.bytes_pushed + result.bytes_pulled
        result.bytes_per_s = result.bytes_total / time_s if time_s else 0.0
        result.gradients_computed, result.gradients_applied = ledger.computed, ledger.applied
        result.gradients_dropped = sum(ledger.dropped.values())
        result.dropped_by_reason = {str(reason): count for reason, count in sorted(ledger.dropped.items())}
        self._fill_activities(result)
        self._fill_staleness(result)
        self.fill_quality(result)
        return result

    def _fill_activities(self, result: RunResult) -> None:
        activities = dict(sorted(self.activities.items()))
        live_s = sum(activity.live_s for activity in activities.values())
        result.steps_by_worker = {worker: activity.steps for worker, activity in activities.items()}
        result.steps = sum(result.steps_by_worker.values())
        result.policy_figures = self.policy_figures
        result.lssr = self.local_steps / result.steps if result.steps else None
        result.compute_fraction_by_worker = {worker: share(a.compute_s, a.live_s) for worker, a in activities.items()}
        result.idle_fraction_by_worker = {worker: share(a.idle_s, a.live_s) for worker, a in activities.items()}
        result.compute_fraction = share(sum(activity.compute_s for activity in activities.values()), live_s)
        result.transfer_fraction = share(sum(activity.transfer_s for activity in activities.values()), live_s)
        result.idle_fraction = max(0.0, 1.0 - result.compute_fraction - result.transfer_fraction) if live_s else 0.0

    def _fill_staleness(self, result: RunResult) -> None:
        if not self.staleness:
            return
        result.staleness_counts = dict(sorted(self.staleness.items()))
        result.staleness_mean = sum(s * count for s, count in self.staleness.items()) / self.staleness.total()
        result.staleness_max = max(self.staleness)

    def fill_quality(self, result: RunResult) -> None:
        result.target_accuracy, result.curve = self.target, self.curve
        if self.curve:
            result.final_accuracy, result.final_loss = self.curve[-1].accuracy, self.curve[-1].loss
            result.replica_accuracy = self.curve[-1].replica_accuracy
            result.best_accuracy = max(point.accuracy for point in self.curve)
        if (reached := self.reached) is not None:
            result.time_to_target_s, result.samples_to_target = reached.time_s, reached.samples


def share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
