"""ESync: fast workers make as many local steps as fit until the slowest has made one; then all replicas meet."""

import math
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from polyrhythm.core import (
    Alarm,
    Bounds,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Outer,
    Policy,
    Proceed,
    Report,
    Stop,
    Stopped,
    Sync,
    Traits,
    Wake,
)
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.epochs import still_known

WEIGHTS = ("uniform", "samples", "inverse", "normalised")
LEAST_SLACK_S = 0.001
"""Floor of what `epsilon` adds, so that it covers the grain of clocks and messages for the shortest steps too."""


class DevicePace(NamedTuple):
    """What the state server knows of one worker.

    Args:
        finished_s: when its last step was complete or, in a new round, when it should have pulled the parameters.
        exchanged: whether its step in flight began with an exchange.
        cost_s: smoothed time of one local step, its query included; None before the first.
        query_s: smoothed time of one query; None before one was seen alone.
        exchange_s: smoothed time of an exchange, push and pull; None before the first.
        steps: local steps of this round.
        samples: of these steps.
        ready: it has been told to aggregate.
    """

    finished_s: float
    exchanged: bool = False
    cost_s: float | None = None
    query_s: float | None = None
    exchange_s: float | None = None
    steps: int = 0
    samples: int = 0
    ready: bool = False


class ESyncState(NamedTuple):
    """The records of all live workers, and what would take long to look up in them.

    Args:
        devices: the records.
        unknown: how many have no cost yet.
        ready: how many are READY.
        slowest: the worker of the highest cost, the first of several; None while no cost is known.
        queries: workers whose queries are not answered yet: those after their first step, while costs are unknown.
        hold_s: until when the first of these may be held back.
        ending: without blocking, workers that have been told to stop and still go on; None while the round lasts.
        newcomers: who has joined since then, and starts with the next round.
        known: records of those that have finished an epoch, from when they did.
    """

    devices: WorkerMap[DevicePace] = WorkerMap()
    unknown: int = 0
    ready: int = 0
    slowest: int | None = None
    queries: WorkerMap[bool] = WorkerMap()
    hold_s: float = math.inf
    ending: WorkerMap[bool] | None = None
    newcomers: tuple[int, ...] = ()
    known: WorkerMap[DevicePace] = WorkerMap()


@dataclass(frozen=True)
class ESync(Policy[ESyncState]):
    """ESync (Li et al. 2020, Algorithms 1 and 2): aggregate when no further local step fits before the slowest is done.

    Each report is a query. With c_p the cost of a step of worker p (computing and the query, smoothed), r the worker
    that asks and s the slowest by cost, r is READY if r is s, or s is READY, or

        c_r + max(epsilon * c_r, 1 ms) > rest = max(0, c_s - (now - when s finished its last step or its pull)),

    and otherwise makes another local step. s must have finished its pull of this round; READY holds for the round. When
    all live workers are READY their deltas are averaged, and a new round starts.

    Args:
        weights: of worker p with n_p local steps. "uniform" as in Eq. 7; "samples": n_p times its mini-batch;
            "inverse": 1 / n_p; "normalised": 1 / n_p with the outer rate mean(n) * mean(1/n), as in FedNova, so that
            every worker counts the same and the mean moves as far as the mean number of steps.
        epsilon: slack as a share of a step, at least 0.
        smoothing: weight of the newest measurement in costs, above 0 and at most 1.
        blocking: whether a worker waits for the answer to its query. If not (Section 4.2), NOT-READY is implied:
            everyone computes on, any number of steps ahead of the coordinator's word. Where READY comes, the worker
            abandons the step in flight and sends what it has learned in all steps before it.
        most: local steps of a round after which a worker is READY, at least 1; None is no limit, as in the paper. Where
            slow workers have data that nobody else has, it keeps their share of the steps from vanishing, and fast
            workers wait instead. Only with `blocking`.

    Differs from the paper. Costs are durations and all times the coordinator's. Costs are unknown at first: then nobody
    is READY before every worker has reported a step; an answer is held back for epsilon of a step meanwhile, so that
    equal workers are READY together. No event tells when a pull has ended: the transfer time in the first report of a
    round, less that of a query, is taken for the exchange, and the next pull of this worker should take as long. READY
    in the non-blocking mode is sent to all workers at once, when the last of them has become READY; sooner would only
    add waiting. A worker that leaves leaves the round; costs outlast the end of an epoch.

    Example:
        >>> policy = ESync()
        >>> state, _ = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> state, _ = policy.decide(state, Report(0, clock=1, time_s=1.0, step_s=1.0))
        >>> state, decisions = policy.decide(state, Alarm(1.05))
        >>> decisions == (Proceed((0,), "replicas"),)
        True
        >>> state, decisions = policy.decide(state, Report(1, clock=1, time_s=1.9, step_s=1.9))
        >>> state, decisions = policy.decide(state, Report(0, clock=2, time_s=2.1, step_s=1.0))
        >>> decisions == (Sync((0, 1), "deltas"), Proceed((0, 1), "replicas"))
        True
    """

    weights: str = "uniform"
    epsilon: float = 0.05
    smoothing: float = 0.3
    blocking: bool = True
    most: int | None = None

    name: ClassVar[str] = "esync"
    summary: ClassVar[str] = "own replicas; fast workers step on until the slowest is done, then all are averaged"

    @property
    def traits(self) -> Traits:
        """Workers wait for answers, but in the non-blocking mode."""
        return Traits("coordinator", frozenset({"replicas"}), waits=self.blocking)

    def __post_init__(self) -> None:
        if self.weights not in WEIGHTS:
            raise SpecError(f"weights must be one of {', '.join(WEIGHTS)} but got {self.weights!r}")
        if not 0 <= self.epsilon < math.inf:
            raise SpecError(f"epsilon must be at least 0 and finite but got {self.epsilon}")
        if not 0 < self.smoothing <= 1:
            raise SpecError(f"smoothing must be above 0 and at most 1 but got {self.smoothing}")
        if self.most is not None:
            require_at_least(1, most=self.most)
            if not self.blocking:
                raise SpecError(f"most={self.most} needs workers that wait; leave out most or blocking=False")

    def init(self, cluster: Cluster) -> ESyncState:
        return ESyncState()

    def bounds(self, cluster: Cluster) -> Bounds:
        """Fast workers lead without limit; a step on a replica is never stale."""
        return Bounds(staleness=0)

    def decide(self, state: ESyncState, event: Event) -> tuple[ESyncState, Decisions]:
        match event:
            case _ if state.ending is not None:
                return self.while_ending(state, state.ending, event)
            case Report() if not (state.unknown or state.queries):
                return self.answer_at_once(state, event)
            case Report(worker=worker, time_s=time_s):
                return self.answer(self.after_report(state, event), time_s, worker)
            case Joined(workers=workers, time_s=time_s):
                state = state._replace(known=still_known(state.known, event, len(state.devices)))
                return started(state, workers, time_s), (Proceed(workers, "replicas"),)
            case Left(time_s=time_s):
                return self.answer(without(state, event), time_s)
            case Alarm(time_s=time_s):
                return self.answer(state, time_s)

    def while_ending(self, state: ESyncState, ending: WorkerMap[bool], event: Event) -> tuple[ESyncState, Decisions]:
        """All are READY, and the word is on its way: what they complete until it comes counts too."""
        match event:
            case Report(worker=worker):
                return self.after_report(state, event), (Proceed((worker,), "replicas"),)
            case Joined(workers=workers):
                known = still_known(state.known, event, len(state.devices))
                return state._replace(newcomers=(*state.newcomers, *workers), known=known), ()
            case Left(worker=worker) if worker in state.newcomers:
                return state._replace(newcomers=tuple(other for other in state.newcomers if other != worker)), ()
            case Left(worker=worker, time_s=time_s):
                return self.exchange_if_stopped(without(state, event), ending.remove(worker), time_s)
            case Stopped(worker=worker, time_s=time_s):
                return self.exchange_if_stopped(state, ending.remove(worker), time_s)
            case Alarm():
                return state, ()

    def answer_at_once(self, state: ESyncState, report: Report) -> tuple[ESyncState, Decisions]:
        """What `answer` makes of `after_report` where all costs are known and no other query waits, in one go."""
        worker, now_s = report.worker, report.time_s
        device = self.after_step(device_of(state, worker), report)
        state = self.with_cost(state, worker, device)
        if device.ready or not self.is_ready(state, worker, now_s):
            return self.answered(state, () if device.ready else (worker,), now_s, worker)
        devices = state.devices.set(worker, device._replace(ready=True))
        return self.answered(state._replace(devices=devices, ready=state.ready + 1), (), now_s, worker)

    def after_report(self, state: ESyncState, report: Report) -> ESyncState:
        worker, before = report.worker, device_of(state, report.worker)
        device = self.after_step(before, report)
        assert device.cost_s is not None
        state = self.with_cost(state._replace(unknown=state.unknown - (before.cost_s is None)), worker, device)
        if state.unknown and before.cost_s is not None and not self.has_enough(device):
            return state
        hold_s = state.hold_s if state.queries else report.time_s + self.slack_s(device.cost_s)
        return state._replace(queries=state.queries.set(worker, True), hold_s=hold_s)

    def with_cost(self, state: ESyncState, worker: int, device: DevicePace) -> ESyncState:
        """With a new record of a worker, which perhaps makes it the slowest, or no longer."""
        assert device.cost_s is not None
        devices = state.devices.set(worker, device)
        return state._replace(devices=devices, slowest=slowest_after(devices, state.slowest, worker, device.cost_s))

    def after_step(self, device: DevicePace, report: Report) -> DevicePace:
        """The record after one more local step; a transfer that holds an exchange tells nothing of the query."""
        query_s, exchange_s = device.query_s, device.exchange_s
        if device.exchanged:
            exchange_s = self.smoothed(exchange_s, max(0.0, report.transfer_s - (query_s or 0.0)))
        else:
            query_s = self.smoothed(query_s, report.transfer_s)
        cost_s = self.smoothed(device.cost_s, report.step_s + (query_s or 0.0))
        steps, samples = device.steps + 1, device.samples + report.samples
        return DevicePace(report.time_s, False, cost_s, query_s, exchange_s, steps, samples, device.ready)

    def smoothed(self, mean: float | None, value: float) -> float:
        return value if mean is None else mean + self.smoothing * (value - mean)

    def slack_s(self, cost_s: float) -> float:
        """What is added to the cost of a step before it is held against the rest."""
        return max(self.epsilon * cost_s, LEAST_SLACK_S)

    def answer(self, state: ESyncState, now_s: float, asked: int | None = None) -> tuple[ESyncState, Decisions]:
        """Answer all queries that can be answered, the newest of `asked`; end the round if all are READY."""
        enough = asked is not None and self.has_enough(device_of(state, asked))
        if state.unknown and now_s < state.hold_s and not enough:
            return self.held(state, asked)
        at_once = () if asked is None or asked in state.queries else (asked,)
        state, going = self.resolved(state, now_s)
        return self.answered(state, tuple(sorted((*going, *at_once))), now_s, asked)

    def answered(
        self, state: ESyncState, going: tuple[int, ...], now_s: float, asked: int | None
    ) -> tuple[ESyncState, Decisions]:
        """Let those go on who are `going`; end the round if all are READY."""
        live = len(state.devices)
        if live and state.ready == live:
            return self.exchange(state, now_s) if self.blocking else self.stop(state, asked)
        if not self.blocking:
            going = () if asked is None else (asked,)
        return state, (Proceed(going, "replicas"),) if going else ()

    def held(self, state: ESyncState, asked: int | None) -> tuple[ESyncState, Decisions]:
        """No answer yet: the costs that are unknown may come any moment."""
        if asked is None:
            return state, ()
        is_held = asked in state.queries
        go_on = () if is_held and self.blocking else (Proceed((asked,), "replicas"),)
        return state, (*go_on, Wake(state.hold_s)) if is_held and len(state.queries) == 1 else go_on

    def resolved(self, state: ESyncState, now_s: float) -> tuple[ESyncState, tuple[int, ...]]:
        """Queries answered READY are latched; the workers of those that are answered NOT-READY."""
        going = []
        for worker in sorted(state.queries, key=lambda worker: worker != state.slowest):
            device = device_of(state, worker)
            if not device.ready and self.is_ready(state, worker, now_s):
                devices = state.devices.set(worker, device._replace(ready=True))
                state = state._replace(devices=devices, ready=state.ready + 1)
            elif not device.ready:
                going.append(worker)
        return state._replace(queries=WorkerMap(), hold_s=math.inf), tuple(sorted(going))

    def has_enough(self, device: DevicePace) -> bool:
        return self.most is not None and device.steps >= self.most

    def is_ready(self, state: ESyncState, worker: int, now_s: float) -> bool:
        """Algorithm 2 for a worker that has made a step in this round."""
        if self.has_enough(device_of(state, worker)):
            return True
        if state.unknown or state.slowest is None:
            return False
        slowest, cost_s = device_of(state, state.slowest), device_of(state, worker).cost_s
        assert slowest.cost_s is not None
        assert cost_s is not None
        if now_s < slowest.finished_s:
            return False  # it has not finished its pull
        rest_s = max(0.0, slowest.cost_s - (now_s - slowest.finished_s))
        return worker == state.slowest or slowest.ready or cost_s + self.slack_s(cost_s) > rest_s

    def stop(self, state: ESyncState, asked: int | None) -> tuple[ESyncState, Decisions]:
        """Send READY to all, who have gone on meanwhile."""
        go = () if asked is None else (Proceed((asked,), "replicas"),)
        ending: WorkerMap[bool] = WorkerMap()
        return state._replace(ending=ending.set_all(tuple(state.devices), True)), (*go, Stop(tuple(state.devices)))

    def exchange_if_stopped(
        self, state: ESyncState, ending: WorkerMap[bool], now_s: float
    ) -> tuple[ESyncState, Decisions]:
        if ending:
            return state._replace(ending=ending), ()
        after, decisions = self.exchange(state, now_s) if state.devices else (ESyncState(known=state.known), ())
        if not state.newcomers:
            return after, decisions
        return started(after, state.newcomers, now_s), (*decisions, Proceed(state.newcomers, "replicas"))

    def exchange(self, state: ESyncState, now_s: float) -> tuple[ESyncState, Decisions]:
        """Aggregate, and start the next round."""
        workers = tuple(state.devices)
        weights, outer = self.weighting(state.devices)
        devices = state.devices.map(lambda device: started_again(device, now_s))
        after = ESyncState(devices, slowest=state.slowest, known=state.known)
        return after, (Sync(workers, "deltas", weights, outer=outer), Proceed(workers, "replicas"))

    def weighting(self, records: WorkerMap[DevicePace]) -> tuple[tuple[float, ...] | None, Outer | None]:
        """Weights of the deltas, and how their mean is applied."""
        if self.weights == "uniform":
            return None, None
        devices = [device for _, device in records.items()]
        if self.weights == "samples":
            return tuple(float(device.samples) for device in devices), None
        inverse = tuple(1 / device.steps for device in devices)
        if self.weights == "inverse":
            return inverse, None
        mean_steps = sum(device.steps for device in devices) / len(devices)
        return inverse, Outer(lr=mean_steps * sum(inverse) / len(devices))


def device_of(state: ESyncState, worker: int) -> DevicePace:
    device = state.devices.get(worker)
    assert device is not None, f"worker {worker} is not live"
    return device


def started(state: ESyncState, workers: tuple[int, ...], time_s: float) -> ESyncState:
    """With workers that are known from an epoch before, and others of which nothing is known yet."""
    devices, unknown = state.devices, state.unknown
    for worker in workers:
        known = state.known.get(worker) or DevicePace(time_s)
        devices = devices.set(worker, DevicePace(time_s, False, known.cost_s, known.query_s, known.exchange_s))
        unknown += known.cost_s is None
    return state._replace(devices=devices, unknown=unknown, slowest=slowest_of(devices))


def started_again(device: DevicePace, now_s: float) -> DevicePace:
    """The record in a new round, which begins with a pull."""
    pulled_s = now_s + (device.exchange_s or 0.0)
    return DevicePace(pulled_s, True, device.cost_s, device.query_s, device.exchange_s)


def slowest_after(devices: WorkerMap[DevicePace], slowest: int | None, worker: int, cost_s: float) -> int:
    """The slowest, now that `worker` has a new cost; all are looked through only if it was the slowest."""
    if slowest == worker or slowest is None:
        return slowest_of(devices) or 0
    leading = devices.get(slowest)
    assert leading is not None, f"worker {slowest} is not live"
    return worker if (cost_s, -worker) > (leading.cost_s or 0.0, -slowest) else slowest


def slowest_of(devices: WorkerMap[DevicePace]) -> int | None:
    known = [(device.cost_s, -worker) for worker, device in devices.items() if device.cost_s is not None]
    return -max(known)[1] if known else None


def without(state: ESyncState, left: Left) -> ESyncState:
    worker, known = left.worker, still_known(state.known, left, len(state.devices))
    device, devices = device_of(state, worker), state.devices.remove(worker)
    return ESyncState(
        devices,
        unknown=state.unknown - (device.cost_s is None),
        ready=state.ready - device.ready,
        slowest=slowest_of(devices) if worker == state.slowest else state.slowest,
        queries=state.queries.remove(worker),
        hold_s=state.hold_s,
        ending=state.ending,
        newcomers=state.newcomers,
        known=known.set(worker, device) if left.reason == "finished" else known,
    )
