"""A bandit over K: choose how many workers go on together from how fast the job learns, while it runs."""

from dataclasses import dataclass, field, fields, replace
from math import isfinite
from typing import Any, ClassVar

from polyrhythm.core import Alarm, Cluster, Decisions, Event, Joined, Left, Policy, Report, Traits
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.handover import Charge, require_plain_gradients
from polyrhythm.policies._lib.progress import LossWindow, Match, healthy
from polyrhythm.policies.k_group import KGroup

GROUP = KGroup(1)


@dataclass(frozen=True, slots=True)
class KBanditState:
    """The policy in charge, the window that is filling, each worker's latest step, and the arms once they are known."""

    cluster: Cluster
    charge: Charge
    window: LossWindow
    steps: WorkerMap[float] = field(default_factory=WorkerMap)
    arms: tuple[Policy[Any], ...] = ()
    match: Match = field(default_factory=lambda: Match.of(0))


@dataclass(frozen=True)
class KBandit(Policy[KBanditState]):
    """Bandit over K: duels between the K in force and its neighbours, judged by relative loss decrease per second.

    Time is cut into windows of ``window * n`` reports, n workers being live. The first runs K-group(1), which is ASP,
    and measures the workers' steps: with h the number of those within 1.5 times the median, the arms are the K in
    {1, h/2, 3h/4, h}, and h holds the place. Every `every`-th window then tries another arm. With r the rate of a
    window (see `polyrhythm.policies._lib.progress`: Theil-Sen slope of the loss over time, by its mean),

        d = r_trial - (r_before + r_after) / 2

    where before and after are the holder's windows around the trial. An arm takes the place when the mean of its d is
    more than z standard errors above zero, and is tried no more when it is as far below; both after four trials. So
    an arm that is in doubt costs one window in `every`, and a short job stays with h, which needs no luck.
    A worker that joins or dies starts it all anew, an epoch's end only the window. Without losses the first window's
    successor h stays.

    Args:
        window: reports of each worker in a window.
        every: a trial in so many windows, at least 2.
        z: standard errors of a decision.
        values: the values of the knob to choose from, such as ``2/5/8``; the first holds the place at the start. Empty:
            as above.
        base: whose first parameter is chosen; any policy on gradients that does not abandon steps.

    Example:
        >>> policy = KBandit(values="2/3")
        >>> state, _ = policy.decide(policy.init(Cluster(workers=3)), Joined((0, 1, 2), time_s=0.0))
        >>> state.charge.policy
        KGroup(k=2)

    Source: ours; Dutta et al. 2018 and RLP show that the best K depends on cluster, model and phase.
    """

    window: int = 3
    every: int = 6
    z: float = 2.0
    values: str = ""
    base: Policy[Any] = GROUP

    name: ClassVar[str] = "kbandit"
    summary: ClassVar[str] = "groups of K, with K chosen from how fast the loss falls"
    traits: ClassVar[Traits] = Traits(needs=frozenset({"loss"}))

    def __post_init__(self) -> None:
        require_at_least(1, window=self.window)
        require_at_least(2, every=self.every)
        if not (self.z > 0 and isfinite(self.z)):
            raise SpecError(f"z must be above 0 and finite but got {self.z}")
        require_plain_gradients("base", self.base)
        if not self.values and type(self.base) is not KGroup:
            raise SpecError(f"values are needed for base {self.base.spec}; give for example values=1/4/7")
        self.listed()

    def listed(self) -> tuple[Policy[Any], ...]:
        knobs = fields(self.base)
        if not knobs:
            raise SpecError(f"base {self.base.spec} has no parameter to choose; use a policy such as k-group or ssp")
        try:
            numbers = [float(value) for value in self.values.split("/")] if self.values else []
        except ValueError:
            raise SpecError(f"values must be numbers with / between them but got {self.values!r}") from None
        return tuple(replace(self.base, **{knobs[0].name: as_whole(number)}) for number in numbers)

    def init(self, cluster: Cluster) -> KBanditState:
        return self.fresh(cluster, Charge.of(self.first(), cluster))

    def first(self) -> Policy[Any]:
        return (self.listed() or (GROUP,))[0]

    def fresh(self, cluster: Cluster, charge: Charge) -> KBanditState:
        size = self.window * max(1, len(charge.roll.present))
        arms = self.listed()
        return KBanditState(cluster, charge, LossWindow(size), arms=arms, match=Match.of(len(arms)))

    def decide(self, state: KBanditState, event: Event) -> tuple[KBanditState, Decisions]:
        match event:
            case Report():
                return self.after_report(state, event)
            case Left(reason="finished") | Alarm():
                charge, decisions = state.charge.decide(event)
                return replace(state, charge=charge), decisions
            case Joined() if state.charge.roll.is_back(event, state.charge.roll.present):
                charge, decisions = state.charge.decide(event)
                return replace(state, charge=charge, window=LossWindow(state.window.size)), decisions
            case Joined() | Left():
                charge, decisions = state.charge.decide(event)
                return self.fresh(state.cluster, charge), decisions

    def after_report(self, state: KBanditState, report: Report) -> tuple[KBanditState, Decisions]:
        """Measure; at the end of a window see who is in charge of the next."""
        steps = state.steps.set(report.worker, report.step_s + report.transfer_s)
        window, arms, match = state.window, state.arms, state.match
        if report.loss is not None:
            window = window.add(report.time_s, report.loss)
        elif not arms:
            window = replace(window, count=window.count + 1)
        if window.full and arms:
            match = match.next(window.rate, self.every, self.z)
        elif window.full:
            arms = arms_for(steps, len(state.charge.roll.present))
            match = Match.of(len(arms))
        window = LossWindow(window.size) if window.full else window
        policy = arms[match.playing] if arms else state.charge.policy
        charge, decisions = state.charge.follow(policy, state.cluster, report)
        return replace(state, charge=charge, window=window, steps=steps, arms=arms, match=match), decisions


def arms_for(steps: WorkerMap[float], workers: int) -> tuple[Policy[Any], ...]:
    """K-groups for so many workers, the number of healthy ones first; who has not reported yet is not healthy."""
    durations = [duration for _, duration in steps.items()]
    h = healthy(durations + [float("inf")] * (workers - len(durations)))
    sizes = dict.fromkeys((max(1, h), max(1, round(0.75 * h)), max(1, round(0.5 * h)), 1))
    return tuple(KGroup(size) for size in sizes)


def as_whole(number: float) -> float | int:
    """A whole number as int.

    >>> as_whole(3.0), as_whole(0.5)
    (3, 0.5)
    """
    return int(number) if float(number).is_integer() else number
