"""RLP: a synchronization policy that was learned, with a fixed policy that takes over where it does not hold."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import inf
from typing import Any, ClassVar

from polyrhythm.core import (
    Alarm,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    LossMeasured,
    MeasureLoss,
    Policy,
    Proceed,
    Report,
    Sync,
    Traits,
)
from polyrhythm.core.spec import parse_spec
from polyrhythm.errors import SpecError, did_you_mean
from polyrhythm.policies._lib.checks import require_at_least
from polyrhythm.policies._lib.handover import Charge, require_plain_gradients
from polyrhythm.policies._lib.progress import LossWindow, Match
from polyrhythm.policies._lib.roll import Roll
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.bsp import BSP
from polyrhythm.policies.k_group import KGroup
from polyrhythm.policies.rlp.network import Learned, load
from polyrhythm.policies.rlp.views import SMOOTHING, VIEWS, ByAction, Observation, View
from polyrhythm.policies.ssp import SSP

FALLBACKS: dict[str, type[Policy[Any]]] = {policy.name: policy for policy in (ASP, BSP, KGroup, SSP)}
"""Policies that a file may name as its fallback."""

LOSSES = {
    "running": Traits(needs=frozenset({"loss"})),
    "probe": Traits(needs=frozenset({"probe_loss"})),
}
"""What a loss is: that of the mini-batches, or that on the probe batch after each update; and what reading it needs."""

FALLBACK = 1
"""The arm of the match between the learned policy, 0, and its fallback."""


@dataclass(frozen=True, slots=True)
class ChosenPolicy:
    """The policy that was chosen last, whether what was seen then lay inside of the training's conditions, for whom."""

    policy: Policy[Any] | None
    inside: bool = True
    crew: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class RLPState:
    """The policy in charge and the one that was chosen; the window that fills; signals of the view; the match.

    `held`: reports whose gradient is applied and whose loss is not known yet, under ``loss="probe"``.
    """

    cluster: Cluster
    charge: Charge
    plan: ChosenPolicy
    window: LossWindow
    signals: Any
    match: Match
    held: tuple[Report, ...] = ()


@dataclass(frozen=True)
class RLP(Policy[RLPState]):
    """A learned policy (RLP): a small network looks at the run and chooses who goes on.

    The file says what the network sees and chooses from. In the view "paper" that is a choice after each gradient among
    nobody, its worker and all who are idle; in the view "phase" one of K for K-group after each window of so many
    reports per worker, or only after the first, until workers come or go, if the file says to keep to a choice. Every
    gradient is applied when it arrives.

    The fallback policy is in charge instead

    - while there is nothing to choose by: in the first phase, and as long as reports state no loss;
    - while the number of workers or an input lies outside of what the training has seen;
    - when it does better. Every `probe`-th window is the fallback's, and d is its rate (relative loss decrease per
      second) less the mean of the learned policy's in the windows around it. When the mean of all d is more than
      `z` standard errors above zero, after four probes at least, the fallback takes over, and the learned policy is
      what is probed from then on. So a policy that is worse is found out after about 4 * probe windows.

    With ``loss="probe"`` the losses are the paper's, those of the parameters after each update: the gradient is
    applied, then the probe batch evaluated, then the choice made. Only the simulator can do so.

    Args:
        file: as ``polyrhythm learn`` writes it; empty: the one that ships with the package.
        fallback: that policy; none: as the file says.
        probe: windows from one probe to the next, at least 2; 0: never.
        z: standard errors of that decision.
        only: restricts it to one action, which makes it the fixed policy that the action is; without a fallback.
        loss: running, the mini-batches' own, or probe; empty: what the file was trained with.

    Example:
        >>> from polyrhythm.core import Cluster, Joined
        >>> policy = RLP(only="h")
        >>> state, decisions = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> decisions
        (Proceed(workers=(0, 1), exchange='gradients', settings=None, shares=None),)

    Source: *Learning efficient parameter server synchronization policies for distributed SGD*, section 3.
    Differs from it: "nobody" while everyone is idle means all; without ``loss="probe"`` the loss is the running mean of
    the mini-batches' own; the fallback and the view "phase" are ours.
    """

    file: str = ""
    fallback: Policy[Any] | None = None
    probe: int = 10
    z: float = 2.0
    only: str = ""
    loss: str = ""

    name: ClassVar[str] = "rlp"
    summary: ClassVar[str] = "a learned network chooses who goes on, with a fixed policy to fall back on"

    def __post_init__(self) -> None:
        require_at_least(0, probe=self.probe)
        if self.probe == 1:
            raise SpecError("probe must be 0 or at least 2 but got 1; the learned policy would never be in charge")
        if not 0 < self.z < inf:
            raise SpecError(f"z must be above 0 and finite but got {self.z}")
        learned = self.learned
        if learned.view not in VIEWS:
            raise SpecError(
                f"rlp file {self.file!r} has the unknown view {learned.view!r}: {did_you_mean(learned.view, VIEWS)}"
            )
        outputs = len(learned.network.layers[-1].bias)
        if (len(learned.conditions.low), outputs) != (self.view.inputs, len(self.view.actions)):
            raise SpecError(f"rlp file {self.file!r} does not fit its view {learned.view!r}; learn it anew")
        if self.only and self.only not in self.view.actions:
            raise SpecError(
                f"only must be an action of the view {learned.view!r} but got {self.only!r}: "
                f"{did_you_mean(self.only, self.view.actions)}"
            )
        require_plain_gradients("fallback", self.fixed)
        self.check_loss()

    def check_loss(self) -> None:
        if self.losses not in LOSSES:
            raise SpecError(f"loss must be {' or '.join(LOSSES)} but got {self.losses!r}")
        if self.losses == "probe" and not isinstance(self.fixed, ASP | SSP | KGroup):
            raise SpecError(
                f"loss=probe needs a fallback that applies each gradient when it arrives but got {self.fixed.spec!r}; "
                "try asp, ssp:3 or k-group:3"
            )

    @property
    def traits(self) -> Traits:
        """Which loss it reads."""
        return LOSSES[self.losses]

    @property
    def losses(self) -> str:
        """One of `LOSSES`."""
        return self.loss or self.learned.loss

    @property
    def learned(self) -> Learned:
        return load(self.file)

    @property
    def view(self) -> View[Any]:
        return VIEWS[self.learned.view]

    @property
    def fixed(self) -> Policy[Any]:
        return self.fallback or fallback_of(self.learned.fallback)

    def init(self, cluster: Cluster) -> RLPState:
        signals = self.view.init()
        chosen = self.view.choose(signals, self.view.actions.index(self.only))[1] if self.only else None
        charge = Charge.of(chosen or self.fixed, cluster)
        return RLPState(cluster, charge, ChosenPolicy(chosen), LossWindow(1), signals, Match.of(2))

    def decide(self, state: RLPState, event: Event) -> tuple[RLPState, Decisions]:
        if self.losses == "running":
            return self.follow(state, event, SMOOTHING)
        match event:
            case Report(worker=worker, time_s=time_s):
                return replace(state, held=(*state.held, event)), (Sync((worker,)), MeasureLoss(time_s))
            case LossMeasured(loss=loss) if state.held:
                report, held = state.held[0]._replace(loss=loss), state.held[1:]
                state, decisions = self.follow(replace(state, held=held), report, weight=1.0)
                return state, tuple(each for each in decisions if each != Sync((report.worker,)))
        state, freed = self.give_up(state, event.worker) if isinstance(event, Left) else (state, ())
        state, decisions = self.follow(state, event, weight=1.0)
        return state, (*freed, *decisions)

    def give_up(self, state: RLPState, worker: int) -> tuple[RLPState, Decisions]:
        """A worker leaves before its loss is known; whoever is in charge hears of its step, whose clock counts."""
        report = next((report for report in state.held if report.worker == worker), None)
        if report is None:
            return state, ()
        charge, decisions = state.charge.decide(report)
        others = [set(each.workers) - {worker} for each in decisions if isinstance(each, Proceed)]
        held = tuple(other for other in state.held if other != report)
        return replace(state, charge=charge, held=held), tuple(Proceed(tuple(sorted(free))) for free in others if free)

    def follow(self, state: RLPState, event: Event, weight: float) -> tuple[RLPState, Decisions]:
        signals = self.view.hear(state.signals, event, weight)
        if isinstance(event, Report):
            return self.after_report(state, signals, event)
        charge, decisions = state.charge.decide(event)
        window, plan = state.window, state.plan
        if not isinstance(event, Alarm):
            window = LossWindow(self.learned.window * max(1, len(charge.roll.present)))
            plan = plan if self.holds(plan, event, state.charge.roll) else self.blind(plan)
        return replace(state, charge=charge, plan=plan, window=window, signals=signals), decisions

    def after_report(self, state: RLPState, signals: Any, report: Report) -> tuple[RLPState, Decisions]:
        """Look at the progress at the end of a window, choose if a choice is due, and let whoever is in charge act."""
        if report.loss is None:
            window, match, plan = state.window, state.match, self.blind(state.plan)
        else:
            window, match, closed = self.measured(state, report.time_s, report.loss)
            signals, observation = self.view.observe(signals, closed)
            signals, plan = (signals, state.plan) if observation is None else self.planned(state, signals, observation)
        policy = self.in_charge(plan, match)
        charge, decisions = swapped(state.charge, policy).follow(policy, state.cluster, report)
        return RLPState(state.cluster, charge, plan, window, signals, match, state.held), decisions

    def blind(self, plan: ChosenPolicy) -> ChosenPolicy:
        """There is nothing to choose by: a report without a loss, or other workers than the choice was made for."""
        return plan if self.only else ChosenPolicy(None, plan.inside)

    def holds(self, plan: ChosenPolicy, event: Event, before: Roll) -> bool:
        """Whether a choice that is kept is still that for these workers, who end and begin an epoch together."""
        if not self.learned.keep or (isinstance(event, Left) and event.reason == "finished"):
            return True
        return isinstance(event, Joined) and before.is_back(event, plan.crew)

    def measured(self, state: RLPState, time_s: float, loss: float) -> tuple[LossWindow, Match, LossWindow | None]:
        """The window with one more loss, the match, and the window that is complete with it."""
        window, match = state.window.add(time_s, loss), state.match
        if not window.full:
            return window, match, None
        if self.probe and state.plan.policy:
            match = match.next(window.rate, self.probe, self.z)
        return LossWindow(window.size), match, window

    def planned(self, state: RLPState, signals: Any, observation: Observation) -> tuple[Any, ChosenPolicy]:
        """The policy that the network chooses, if it was trained for what it sees; one that is kept."""
        if self.learned.keep and state.plan.policy and not self.only:
            return signals, state.plan
        if self.only:
            action = self.view.actions.index(self.only)
        elif self.learned.conditions.hold(len(state.charge.roll.live_workers), observation):
            action = self.choose(observation)
        else:
            return signals, ChosenPolicy(state.plan.policy, inside=False)
        signals, policy = self.view.choose(signals, action)
        return signals, ChosenPolicy(policy, crew=state.charge.roll.present)

    def choose(self, observation: Observation) -> int:
        return self.learned.network.best(observation)

    def in_charge(self, plan: ChosenPolicy, match: Match) -> Policy[Any]:
        trusted = bool(self.only) or (plan.inside and match.playing != FALLBACK)
        return plan.policy if trusted and plan.policy is not None else self.fixed


@lru_cache(maxsize=16)
def fallback_of(spec: str) -> Policy[Any]:
    """The policy that a file names; it is asked for at many steps."""
    return parse_spec(spec, FALLBACKS)


def swapped(charge: Charge, policy: Policy[Any]) -> Charge:
    """With another action of the paper in place of the one before; they share a state, so nobody hands over."""
    alike = type(policy) is ByAction and type(charge.policy) is ByAction
    return replace(charge, policy=policy) if alike else charge
