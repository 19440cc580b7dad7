"""SelSync: replicas meet in the steps in which somebody's gradient changes much."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
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
from polyrhythm.errors import SpecError, UsageError
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.epochs import still_known
from polyrhythm.policies._lib.quantile import Quantile

AGGREGATES = ("parameters", "gradients")
SHOWN = (0.5, 0.9, 0.99)
"""Quantiles of Delta that are shown."""


@dataclass(frozen=True, slots=True)
class Signal:
    """The last squared norms of one worker's gradients, their weighted mean E, and Delta, its last relative change."""

    norms: tuple[float, ...] = ()
    mean: float = 0.0
    change: float = math.inf

    def after(self, norm: float, window: int, factor: float) -> "Signal":
        """The signal after one more gradient.

        >>> Signal().after(4.0, window=25, factor=0.5).after(7.0, window=25, factor=0.5)
        Signal(norms=(4.0, 7.0), mean=6.0, change=0.5)
        """
        norms = (*self.norms[-window + 1 :], norm)
        mean = windowed_mean(norms, factor)
        return Signal(norms, mean, relative_change(mean, self.mean) if self.norms else math.inf)


def windowed_mean(norms: Sequence[float], factor: float) -> float:
    """Mean with the weight 1 for the newest, the last, and 1 - factor times the weight of its successor for each other.

    >>> windowed_mean((4.0, 4.0, 4.0), factor=0.02), windowed_mean((4.0, 7.0), factor=0.5)
    (4.0, 6.0)
    """
    total = weight = 0.0
    for norm in norms:
        total = (1 - factor) * total + norm
        weight = (1 - factor) * weight + 1
    return total / weight


def relative_change(now: float, before: float) -> float:
    """|now - before| / before; of nothing to something infinite, of nothing to nothing zero."""
    if before > 0:
        return abs(now - before) / before
    return math.inf if now > 0 else 0.0


@dataclass(frozen=True, slots=True)
class SelSyncState:
    """Who waits for the others' flags, everyone's signal, the threshold in force, and what is shown of Delta.

    `threshold` moves only where a target is given. `steps` and `synchronised` are those of all workers.
    """

    factor: float
    threshold: Quantile
    barrier: Barrier = field(default_factory=Barrier)
    signals: WorkerMap[Signal] = field(default_factory=WorkerMap)
    shown: tuple[Quantile, ...] = ()
    steps: int = 0
    synchronised: int = 0


@dataclass(frozen=True)
class SelSync(Policy[SelSyncState]):
    """SelSync (Tyagi and Swany 2023, Algorithm 1): average in the steps in which any worker's gradient changes enough.

    In step i each worker has ||g_i||^2, the squared norm of its gradient before weight decay, and

        E_i = sum of (1 - factor)^j * ||g_(i-j)||^2 over the last `window` of them, by the sum of these weights,
        Delta_i = |E_i - E_(i-1)| / E_(i-1), infinite until there are two.

    Everyone steps its own replica first. If ``Delta_i >= delta`` on any worker, all replicas are averaged; otherwise
    all go on. ``delta=0`` is BSP's schedule, ``delta=inf`` never communicates. The share of steps without an exchange
    is the LSSR.

    Args:
        delta: threshold, at least 0; where a target is given, only what it starts from.
        window: norms that E looks back on, at least 2.
        factor: weight of the newest norm, above 0 and at most 1; None is n/100 with n planned workers, as in the paper.
            Delta is about factor * |norm / E - 1| and the largest of n decides: with independent log-normal norms
            (sigma 0.5), ``delta=0.3`` fires in a fifth of the steps of 16 workers and in 1 % or less of those of 8 or
            fewer.
        aggregate: "parameters", or "gradients": then a step that synchronises is made with the mean gradient in place
            of each worker's own, and the replicas, which had drifted apart before, stay apart.
        lssr: LSSR to hold instead of a threshold: delta follows that quantile of the largest Delta of each step.
        quantile: quantile of all Deltas to hold delta at instead.

    Differs from Algorithm 1 only in `factor` and in the targets, which it does not have. The authors' released code
    does other than the paper, and than this: it averages before the local step, so that replicas differ right after an
    exchange; sums the norms of the layers, not squared; takes a second mean, over Delta; divides zero by zero in the
    second step; synchronises every 25 steps in any case; shuffles the whole data set on each rank, where the paper
    rotates chunks (SelDP); and counts b samples for a local step and n * b for a synchronised one, so that its decay of
    the rate depends on delta.

    Raises:
        UsageError: from `decide` for a report without a norm, as in a run that trains nothing, unless a target is
            given; under a target every step then counts the same and the LSSR alone holds.

    Example:
        >>> policy = SelSync(delta=0.3, factor=0.5)
        >>> state, _ = policy.decide(policy.init(Cluster(workers=1)), Joined((0,), time_s=0.0))
        >>> for clock, norm in enumerate((4.0, 4.0, 8.0), 1):
        ...     state, decisions = policy.decide(state, Report(0, clock, time_s=float(clock), grad_sq_norm=norm))
        ...     print(decisions[:-1])
        (Sync(workers=(0,), what='parameters', weights=None, adopters=None, outer=None, fragment=None, delay=0),)
        ()
        (Sync(workers=(0,), what='parameters', weights=None, adopters=None, outer=None, fragment=None, delay=0),)
    """

    delta: float = 0.3
    window: int = 25
    factor: float | None = None
    aggregate: str = "parameters"
    lssr: float | None = None
    quantile: float | None = None

    name: ClassVar[str] = "selsync"
    summary: ClassVar[str] = "own replicas, averaged in the steps in which somebody's gradient changes by delta or more"
    traits: ClassVar[Traits] = Traits(
        placement="every_rank", exchanges=frozenset({"replicas"}), needs=frozenset({"grad_sq_norm"})
    )

    def __post_init__(self) -> None:
        if not self.delta >= 0:
            raise SpecError(f"delta must be at least 0 but got {self.delta}")
        require_at_least(2, window=self.window)
        if self.factor is not None and not 0 < self.factor <= 1:
            raise SpecError(f"factor must be above 0 and at most 1 but got {self.factor}")
        if self.aggregate not in AGGREGATES:
            raise SpecError(f"aggregate must be parameters or gradients but got {self.aggregate!r}")
        self.check_targets()

    def check_targets(self) -> None:
        if self.lssr is not None and self.quantile is not None:
            raise SpecError("lssr and quantile are two ways to say where delta goes; give one of them")
        for name in ("lssr", "quantile"):
            value = getattr(self, name)
            if value is not None and not 0 < value < 1:
                raise SpecError(f"{name} must be in (0, 1) but got {value}; delta=0 and delta=inf are the ends")
        if self.target is not None and not 0 < self.delta < math.inf:
            raise SpecError(f"delta must be positive and finite to start a target from but got {self.delta}")

    @property
    def target(self) -> float | None:
        return self.quantile if self.lssr is None else self.lssr

    def init(self, cluster: Cluster) -> SelSyncState:
        factor = min(1.0, cluster.workers / 100) if self.factor is None else self.factor
        start = math.log(self.delta) if self.target is not None else 0.0
        shown = tuple(Quantile(share, math.log(factor)) for share in SHOWN)
        return SelSyncState(factor, Quantile(self.target or 0.0, start), shown=shown)

    def bounds(self, cluster: Cluster) -> Bounds:
        """All wait for each other's flags in every step; a step on a replica is never stale."""
        return Bounds(lead=1, staleness=0)

    def figures(self, state: SelSyncState) -> dict[str, float]:
        """The threshold in force, running quantiles of all workers' Deltas, and the LSSR so far."""
        quantiles = {f"delta_p{100 * q.share:g}": q.value for q in state.shown if q.count}
        lssr = {"lssr": 1 - state.synchronised / state.steps} if state.steps else {}
        return {"delta": self.threshold(state), **quantiles, **lssr}

    def decide(self, state: SelSyncState, event: Event) -> tuple[SelSyncState, Decisions]:
        match event:
            case Report():
                return self.end_step(self.after_report(state, event))
            case Joined(workers=workers):
                signals = still_known(state.signals, event, state.barrier.live)
                barrier = state.barrier.join(len(workers))
                return replace(state, barrier=barrier, signals=signals), (Proceed(workers, "replicas"),)
            case Left(worker=worker):
                signals = still_known(state.signals, event, state.barrier.live)
                barrier = state.barrier.leave(worker)
                return self.end_step(replace(state, barrier=barrier, signals=signals))
            case Alarm():
                return state, ()

    def after_report(self, state: SelSyncState, report: Report) -> SelSyncState:
        """With the worker's signal moved on, and waiting for the others'."""
        signal = self.moved(state.signals.get(report.worker) or Signal(), report, state.factor)
        shown = state.shown
        if report.grad_sq_norm is not None and 0 < signal.change < math.inf:
            shown = tuple(quantile.after(signal.change) for quantile in shown)
        threshold = state.threshold
        if self.quantile is not None and signal.change < math.inf:
            threshold = threshold.after(signal.change)
        return replace(
            state,
            threshold=threshold,
            barrier=state.barrier.arrive(report.worker),
            signals=state.signals.set(report.worker, signal),
            shown=shown,
            steps=state.steps + 1,
        )

    def moved(self, signal: Signal, report: Report, factor: float) -> Signal:
        if report.grad_sq_norm is not None:
            return signal.after(report.grad_sq_norm, self.window, factor)
        self.check_untrained()
        return Signal((1.0,), 1.0, 1.0)

    def check_untrained(self) -> None:
        """Refuse a run that trains nothing, unless the share of local steps is given."""
        if self.lssr is None:
            raise UsageError(
                f"policy {self.spec} decides from the norms of gradients, and this run trains nothing; "
                "train something, or give the share of local steps, as in selsync:lssr=0.8"
            )

    def threshold(self, state: SelSyncState) -> float:
        return self.delta if self.target is None else state.threshold.value

    def end_step(self, state: SelSyncState) -> tuple[SelSyncState, Decisions]:
        """Once every live worker waits: average if any flag is set, and go on."""
        barrier, workers = state.barrier.release(state.barrier.live)
        if not workers:
            return state, ()
        largest = max(signal.change for worker in workers if (signal := state.signals.get(worker)))
        flagged = self.threshold(state) <= largest and self.delta < math.inf
        state = replace(state, barrier=barrier)
        if self.lssr is not None:
            state = replace(state, threshold=state.threshold.moved(flagged))
        if not flagged:
            return state, (Proceed(workers, "replicas"),)
        what = "gradients" if self.aggregate == "gradients" else "parameters"
        return replace(state, synchronised=state.synchronised + len(workers)), (
            Sync(workers, what),  # type: ignore[arg-type]
            Proceed(workers, "replicas"),
        )
