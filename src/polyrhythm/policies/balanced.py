"""Balanced BSP: the batch of BSP in shares that all workers are through with at the same time."""

import math
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import ClassVar

from polyrhythm.core import (
    Alarm,
    Bounds,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Proceed,
    Report,
    Sync,
    Traits,
)
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.policies._lib.dealing.contention import UNKNOWN, Transfers, transfers_after
from polyrhythm.policies._lib.dealing.guard import GuardedStep, ShareGuard
from polyrhythm.policies._lib.dealing.shares import better_shares
from polyrhythm.policies._lib.dealing.step_time import SPREAD, StepTime, known_step_time
from polyrhythm.policies._lib.epochs import still_known

LEARNED = 2.5
"""Steps after which a worker's time is known, as their weights count them: three."""

UNTIMED = 2
"""First steps of a worker that are none of them: much is set up in the first, and in the second
DistributedDataParallel rebuilds its buckets, for which everyone waits.
"""

KNOWN_STEPS = 16
"""Steps that count as made for a time that is known beforehand."""

EXCHANGE_STEPS = 8
"""Rounds over which the time of the exchange is averaged."""


@dataclass(frozen=True, slots=True)
class BalancedState:
    """What balanced BSP knows.

    Args:
        batch_size: samples of a mini-batch under equal shares.
        barrier: who is there and who waits.
        samples: of the mini-batches of those who wait.
        dealt: shares of the round under way, where they are unequal.
        times: of all workers, also of those who have finished and may come back.
        begun: steps that each has made since it joined, as far as they are not timed.
        exchange_s: what a round takes beyond its slowest step.
        released_s: when the round began.
        least_s: least time of a worker of this round beyond its own step.
        changes: how often the shares have changed.
        aims: shares that are best, where they are unequal; `dealt` has as much of them as `guard` affords.
        guard: what limits the shares, if anything does.
        steps: of those who wait, where something limits the shares.
        sizes: samples of the round before.
        least: smallest share, see `Cluster.least_share`.
        transfers: of each worker, under equal shares and under unequal ones.
    """

    batch_size: int
    barrier: Barrier = field(default_factory=Barrier)
    samples: WorkerMap[int] = field(default_factory=WorkerMap)
    dealt: WorkerMap[int] = field(default_factory=WorkerMap)
    times: WorkerMap[StepTime] = field(default_factory=WorkerMap)
    begun: WorkerMap[int] = field(default_factory=WorkerMap)
    exchange_s: float = 0.0
    released_s: float = 0.0
    least_s: float = math.inf
    changes: int = 0
    aims: WorkerMap[int] = field(default_factory=WorkerMap)
    guard: ShareGuard | None = None
    steps: WorkerMap[GuardedStep] = field(default_factory=WorkerMap)
    sizes: tuple[int, ...] = ()
    least: int = 1
    transfers: WorkerMap[Transfers] = field(default_factory=WorkerMap)


@dataclass(frozen=True)
class Balanced(Policy[BalancedState]):
    """Balanced BSP: n workers compute the n * B samples of a BSP step in shares b_p, so that all are through together.

    With g_p the mean gradient of worker p over its b_p samples each round makes one update with
    sum_p (b_p / sum_q b_q) * g_p: the mean over all samples, as of one process with the batch n * B. The shares are the
    whole numbers with sum n * B that minimise max_p t_p(b_p), where t_p(b) = a_p + c_p * b is learned from the steps of
    worker p. They change only if a round, exchange included, gets 3 % shorter, and until then, and where all are
    equally fast, every b_p is B: then it is BSP.

    Args:
        most: largest share of a worker, as its memory may ask for; inf: no limit. One below B counts as B.
        known: seconds of a mini-batch of B on worker 0, 1, ..., if they are known beforehand, as in ``0.1/0.1/0.4``; a
            dash for one that is not. They count like steps that were made. ``0.1~0.3`` says that a single step
            deviates by 30 %.
        risk: share of BSP's time by which the job may be behind it if a worker suddenly becomes four times slower:
            shares are small at first, and grow with the time that they save. inf: no limit.
        account: of use to `risk`, as in ``12.5/0.3/0.02``: seconds that BSP would have taken until now, what the job is
            ahead of that, and what a round takes beyond its slowest step.

    Source: LB-BSP (Chen et al. 2020), semi-dynamic load balancing. Differs: a fixed part of a step is learned too.

    Example:
        >>> from polyrhythm.core import Cluster, Joined, Report
        >>> policy = Balanced()
        >>> state, _ = policy.decide(policy.init(Cluster(2, batch_size=8)), Joined((0, 1), time_s=0.0))
        >>> for clock in (1, 2, 3, 4, 5):
        ...     for worker, step_s in ((0, 1.0), (1, 3.0)):
        ...         report = Report(worker, clock, 3.0 * clock, samples=8, step_s=step_s)
        ...         state, decisions = policy.decide(state, report)
        >>> decisions
        (Sync(workers=(0, 1), ...), Proceed(workers=(0, 1), ..., shares=(12, 4)))
    """

    most: float = math.inf
    known: str = ""
    risk: float = math.inf
    account: str = ""

    name: ClassVar[str] = "balanced"
    summary: ClassVar[str] = "BSP with shares of the batch by speed"
    traits: ClassVar[Traits] = Traits(placement="clock", steady=True, shares=True)

    def __post_init__(self) -> None:
        if not self.most >= 1 or (self.most != math.inf and self.most != int(self.most)):
            raise SpecError(f"most must be a whole number of at least 1, or inf, but got {self.most:g}")
        known_times(self.known, 1)
        if not self.risk >= 0:
            raise SpecError(f"risk must be a share of at least 0, or inf, but got {self.risk:g}")
        guard_of(self.risk, self.account)

    def init(self, cluster: Cluster) -> BalancedState:
        times = known_times(self.known, cluster.batch_size)
        guard = guard_of(self.risk, self.account, trusts=bool(self.known))
        return BalancedState(cluster.batch_size, times=times, guard=guard, least=cluster.least_share)

    def bounds(self, cluster: Cluster) -> Bounds:
        """Nobody is ahead by more than the round under way, and everyone reads the newest parameters."""
        return Bounds(lead=1, staleness=0)

    def figures(self, state: BalancedState) -> dict[str, float]:
        """The largest and the smallest share of the round under way, and how often shares have changed."""
        shares = [share for _, share in state.dealt.items()] or [state.batch_size]
        return {"largest_share": max(shares), "smallest_share": min(shares), "changes": state.changes}

    def decide(self, state: BalancedState, event: Event) -> tuple[BalancedState, Decisions]:
        if state.guard is not None and isinstance(event, Joined | Left):
            transfers = still_known(state.transfers, event, state.barrier.live)
            state = replace(state, guard=state.guard.anew(), transfers=transfers)
        match event:
            case Report():
                return self._release_if_complete(measured(state, event), event.time_s)
            case Joined(workers=workers, time_s=time_s):
                state = replace(state, times=still_known(state.times, event, state.barrier.live))
                return self._welcome(state, workers, time_s)
            case Left(worker=worker):
                times = still_known(state.times, event, state.barrier.live)
                barrier, samples = state.barrier.leave(worker), state.samples.remove(worker)
                steps, begun = state.steps.remove(worker), state.begun.remove(worker)
                left = replace(state, barrier=barrier, times=times, samples=samples, begun=begun, steps=steps)
                return self._release_if_complete(left, event.time_s)
            case Alarm():
                return state, ()

    def _welcome(
        self, state: BalancedState, workers: tuple[int, ...], time_s: float
    ) -> tuple[BalancedState, Decisions]:
        """Newcomers take part in the round under way with mini-batches of B; a whole cluster has its shares at once."""
        alone = not state.barrier.live
        state = replace(state, barrier=state.barrier.join(len(workers)))
        if not alone:
            return state, (Proceed(workers),)
        return self._deal(replace(state, least_s=math.inf), workers, time_s)

    def _release_if_complete(self, state: BalancedState, time_s: float) -> tuple[BalancedState, Decisions]:
        if not state.barrier.holds(state.barrier.live):
            return state, ()
        workers = tuple(state.barrier.waiting)
        sync = Sync(workers, weights=weights_of(state, workers))
        state = self._guarded(replace(exchanged(state), barrier=state.barrier.open()), workers, time_s)
        state, proceed = self._deal(state, workers, time_s)
        return replace(state, samples=WorkerMap(), steps=WorkerMap()), (sync, *proceed)

    def _guarded(self, state: BalancedState, workers: tuple[int, ...], time_s: float) -> BalancedState:
        """With what the round that is over tells of the time that shares save."""
        guard, steps = state.guard, [step for worker in workers if (step := state.steps.get(worker))]
        if guard is None or len(steps) != len(workers):
            return state
        sizes = tuple(state.samples.get(worker) or 0 for worker in workers)
        dealt = tuple(state.dealt.get(worker) or state.batch_size for worker in workers)
        steps, transfers = apart(steps, state.transfers, workers, uneven=len(set(sizes)) > 1)
        guard = guard.after(steps, time_s - state.released_s, delayed=dealt != sizes == state.sizes)
        times = [state.times.get(worker) or StepTime() for worker in workers]
        if all(time.steps >= LEARNED for time in times):
            whole = [step.whole_s for step in steps]
            guard = guard.foreseen(times, whole, state.batch_size, self.most, state.exchange_s, state.least)
        return replace(state, guard=guard, sizes=sizes, transfers=transfers)

    def _deal(self, state: BalancedState, workers: tuple[int, ...], time_s: float) -> tuple[BalancedState, Decisions]:
        """Start a round of these workers with the shares that are best now."""
        equal = (state.batch_size,) * len(workers)
        now = tuple(state.aims.get(worker) or state.batch_size for worker in workers)
        now = now if len(state.aims) in (0, len(workers)) and sum(now) == sum(equal) else equal
        times = filled([state.times.get(worker) for worker in workers], state.batch_size)
        limits = self.most, state.exchange_s, state.least
        shares = better_shares(times, now, state.batch_size, *limits) if times else now
        aims = unequal(workers, shares)
        if state.guard is not None and times:
            shares = state.guard.afforded(times, shares, state.batch_size)
        dealt = unequal(workers, shares)
        changes = state.changes + (dealt != state.dealt)
        state = replace(state, aims=aims, dealt=dealt, released_s=time_s, least_s=math.inf, changes=changes)
        return state, (Proceed(workers, shares=shares if shares != equal else None),)


def unequal(workers: tuple[int, ...], shares: tuple[int, ...]) -> WorkerMap[int]:
    """Shares by worker; nothing where they are equal."""
    dealt: WorkerMap[int] = WorkerMap()
    if len(set(shares)) > 1:
        for worker, share in zip(workers, shares, strict=True):
            dealt = dealt.set(worker, share)
    return dealt


def guard_of(risk: float, account: str, trusts: bool = False) -> ShareGuard | None:
    """What `Balanced.risk` and `Balanced.account` say."""
    try:
        numbers = [float(part) for part in account.split("/")] if account else [0.0, 0.0]
    except ValueError:
        numbers = []
    if len(numbers) not in (2, 3) or not all(map(math.isfinite, numbers)):
        raise SpecError(f"account must be two or three numbers with / between them but got {account!r}")
    return ShareGuard.begun(risk, numbers, trusts)


@lru_cache(maxsize=8)
def known_times(known: str, batch_size: int) -> WorkerMap[StepTime]:
    """What `Balanced.known` says; read once: `auto` says it anew whenever a worker leaves, as all do when epochs end.

    >>> [(worker, round(time.expected_s(8), 2)) for worker, time in known_times("0.1/-/0.4", 8).items()]
    [(0, 0.1), (2, 0.4)]
    """
    times: WorkerMap[StepTime] = WorkerMap()
    for worker, seconds in enumerate(known.split("/") if known else ()):
        if seconds != "-":
            times = times.set(worker, known_time(seconds, batch_size, known))
    return times


def known_time(seconds: str, batch_size: int, known: str) -> StepTime:
    """One worker of `known_times`."""
    step, _, spread = seconds.partition("~")
    try:
        step_s, deviation = float(step), float(spread or SPREAD)
    except ValueError:
        step_s, deviation = 0.0, 0.0
    if not 0 < step_s < math.inf or not 0 < deviation < math.inf:
        raise SpecError(f"known must be seconds above 0 with / between them, or -, but got {known!r}")
    return known_step_time(batch_size, step_s, deviation, KNOWN_STEPS)


def filled(times: list[StepTime | None], batch_size: int) -> list[StepTime]:
    """Everyone's times, where those who are not known are as fast as the others on average; none if nobody is."""
    known = [time for time in times if time is not None and time.steps >= LEARNED]
    if not known:
        return []
    mean_s = sum(time.expected_s(batch_size) for time in known) / len(known)
    newcomer = StepTime(sample_s=mean_s / batch_size)
    return [newcomer if time is None or time.steps < LEARNED else time for time in times]


def measured(state: BalancedState, report: Report) -> BalancedState:
    """With a step that has been made: the worker waits, and its time is known better.

    It is made anew and not by `replace`, which takes as long as all the rest: every step of every worker comes here.
    """
    worker, samples = report.worker, report.samples
    times, begun, least_s, steps = state.times, state.begun, state.least_s, state.steps
    if (made := begun.get(worker) or 0) < UNTIMED:
        begun = begun.set(worker, made + 1)
    else:
        time = times.get(worker) or StepTime()
        times = times.set(worker, time.after(samples, report.step_s, report.transfer_s))
        beyond_s = report.time_s - state.released_s - report.step_s - report.transfer_s
        least_s = min(least_s, max(0.0, beyond_s))
    if state.guard is not None:
        steps = steps.set(worker, guarded_step(report, times.get(worker), state.batch_size))
    return BalancedState(
        state.batch_size,
        state.barrier.arrive(worker),
        state.samples.set(worker, samples),
        state.dealt,
        times,
        begun,
        state.exchange_s,
        state.released_s,
        least_s,
        state.changes,
        state.aims,
        state.guard,
        steps,
        state.sizes,
        state.least,
        state.transfers,
    )


def guarded_step(report: Report, time: StepTime | None, batch_size: int) -> GuardedStep:
    """A step with its transfers, and how long it would have been with B samples: at least, where it had more."""
    whole_s, transfer_s = report.step_s, report.transfer_s
    if report.samples > batch_size:  # of a step that was late nobody knows which part of it depends on its samples
        whole_s *= batch_size / report.samples
    elif time is not None:
        whole_s *= time.computing_s(batch_size) / max(time.computing_s(report.samples), 1e-12)
    return GuardedStep(report.step_s + transfer_s, whole_s + transfer_s, transfer_s)


def apart(
    steps: list[GuardedStep], transfers: WorkerMap[Transfers], workers: tuple[int, ...], uneven: bool
) -> tuple[list[GuardedStep], WorkerMap[Transfers]]:
    """Steps with the transfers that they would have had under equal shares, and what is known of transfers by now."""
    now = zip(workers, (step.transfer_s for step in steps), strict=True)
    transfers = transfers_after(transfers, now, uneven)
    if not uneven:
        return steps, transfers
    extra = [(transfers.get(worker) or UNKNOWN).extra_s for worker in workers]
    equal = [step._replace(whole_s=step.whole_s - extra_s) for step, extra_s in zip(steps, extra, strict=True)]
    return equal, transfers


def exchanged(state: BalancedState) -> BalancedState:
    """With what the round has taken beyond everyone's step, which is its exchange."""
    if state.least_s == math.inf:
        return state
    return replace(state, exchange_s=state.exchange_s + (state.least_s - state.exchange_s) / EXCHANGE_STEPS)


def weights_of(state: BalancedState, workers: tuple[int, ...]) -> tuple[float, ...] | None:
    """Samples of each; under equal shares all count as much, as in BSP."""
    samples = [state.samples.get(worker) or 0 for worker in workers]
    if len(set(samples)) == 1 or not (state.dealt or max(samples) > state.batch_size):
        return None
    return tuple(float(count) for count in samples)
