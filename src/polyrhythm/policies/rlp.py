"""RLP: a synchronization policy that was learned, with a fixed rule that takes over where it does not hold."""

from dataclasses import dataclass, replace
from math import inf
from typing import Any, ClassVar

from polyrhythm.core import Alarm, Cluster, Decisions, Event, Joined, Left, Policy, Report, Traits
from polyrhythm.core.spec import parse_spec
from polyrhythm.errors import SpecError, did_you_mean
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.bsp import BSP
from polyrhythm.policies.checks import require_at_least
from polyrhythm.policies.handover import Charge, require_plain_gradients
from polyrhythm.policies.k_group import KGroup
from polyrhythm.policies.progress import Match, Window
from polyrhythm.policies.rlp_file import Learned, load
from polyrhythm.policies.rlp_views import VIEWS, ByAction, Observation, View
from polyrhythm.policies.ssp import SSP

FALLBACKS: dict[str, type[Policy[Any]]] = {rule.name: rule for rule in (ASP, BSP, KGroup, SSP)}
"""Rules that a file may name as its fallback."""

FALLBACK = 1
"""The arm of the match between the learned policy, 0, and its fallback."""


@dataclass(frozen=True, slots=True)
class RLPState:
    """The rule in charge and the one that was chosen last; the window that fills; signals of the view; the match."""

    cluster: Cluster
    charge: Charge
    chosen: Policy[Any] | None
    window: Window
    signals: Any
    match: Match
    inside: bool = True


@dataclass(frozen=True)
class RLP(Policy[RLPState]):
    """A learned policy (RLP): a small network looks at the run and chooses who goes on.

    The file says what the network sees and chooses from. In the view "paper" that is a choice after each gradient among
    nobody, its worker and all who are idle; in the view "phase" one of K for K-group after each window of so many
    reports per worker. Every gradient is applied when it arrives.

    The fallback rule is in charge instead

    - while there is nothing to choose by: in the first phase, and as long as reports state no loss;
    - while the number of workers or an input lies outside of what the training has seen;
    - when it does better. Every `probe`-th window is the fallback's, and d is its rate (relative loss decrease per
      second) less the mean of the learned policy's in the windows around it. When the mean of all d is more than
      `z` standard errors above zero, after four probes at least, the fallback takes over, and the learned policy is
      what is probed from then on. So a policy that is worse is found out after about 4 * probe windows.

    Args:
        file: as ``polyrhythm learn`` writes it; empty: the one that ships with the package.
        fallback: that rule; none: as the file says.
        probe: windows from one probe to the next, at least 2; 0: never.
        z: standard errors of that decision.
        only: restricts it to one action, which makes it the fixed rule that the action is; without a fallback.

    Example:
        >>> policy = RLP(only="h")
        >>> state, decisions = policy.decide(policy.init(Cluster(workers=2)), Joined((0, 1), time_s=0.0))
        >>> decisions
        (Proceed(workers=(0, 1), exchange='gradients', settings=None),)

    Source: *Learning efficient parameter server synchronization policies for distributed SGD*, section 3.
    Differs from it: "nobody" while everyone is idle means all; the loss is the running mean of the mini-batches' own;
    the fallback and the view "phase" are ours.
    """

    file: str = ""
    fallback: Policy[Any] | None = None
    probe: int = 10
    z: float = 2.0
    only: str = ""

    name: ClassVar[str] = "rlp"
    summary: ClassVar[str] = "a learned network chooses who goes on, with a fixed rule to fall back on"
    traits: ClassVar[Traits] = Traits(needs=frozenset({"loss"}))

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

    @property
    def learned(self) -> Learned:
        """What the file says; read once."""
        return load(self.file)

    @property
    def view(self) -> View[Any]:
        """What the network sees and chooses from."""
        return VIEWS[self.learned.view]

    @property
    def fixed(self) -> Policy[Any]:
        """The fallback rule."""
        return self.fallback or parse_spec(self.learned.fallback, FALLBACKS)

    def init(self, cluster: Cluster) -> RLPState:
        signals = self.view.init()
        chosen = self.view.choose(signals, self.view.actions.index(self.only))[1] if self.only else None
        return RLPState(cluster, Charge.of(chosen or self.fixed, cluster), chosen, Window(1), signals, Match.of(2))

    def decide(self, state: RLPState, event: Event) -> tuple[RLPState, Decisions]:
        state = replace(state, signals=self.view.hear(state.signals, event))
        match event:
            case Report():
                return self.after_report(state, event)
            case Joined() | Left():
                charge, decisions = state.charge.decide(event)
                size = self.learned.window * max(1, len(charge.crew.clocks))
                return replace(state, charge=charge, window=Window(size)), decisions
            case Alarm():
                charge, decisions = state.charge.decide(event)
                return replace(state, charge=charge), decisions

    def after_report(self, state: RLPState, report: Report) -> tuple[RLPState, Decisions]:
        """Look at the progress at the end of a window, choose if a choice is due, and let whoever is in charge act."""
        state = self.looked(state, report) if report.loss is not None else self.blind(state)
        policy = self.in_charge(state)
        charge, decisions = swapped(state.charge, policy).follow(policy, state.cluster, report)
        return replace(state, charge=charge), decisions

    def blind(self, state: RLPState) -> RLPState:
        """A report without a loss: there is nothing to choose by."""
        return state if self.only else replace(state, chosen=None)

    def looked(self, state: RLPState, report: Report) -> RLPState:
        """With what this report tells, and what is chosen if a choice is due."""
        state, closed = self.measured(state, report)
        signals, observation = self.view.observe(state.signals, closed)
        state = replace(state, signals=signals)
        return state if observation is None else self.chosen(state, observation)

    def measured(self, state: RLPState, report: Report) -> tuple[RLPState, Window | None]:
        """With the loss of this report, and the window that it completes."""
        assert report.loss is not None
        window = state.window.add(report.time_s, report.loss)
        if not window.full:
            return replace(state, window=window), None
        match = state.match.next(window.rate, self.probe, self.z) if self.probe and state.chosen else state.match
        return replace(state, window=Window(window.size), match=match), window

    def chosen(self, state: RLPState, observation: Observation) -> RLPState:
        """With the rule that the network chooses, if it was trained for what it sees."""
        if self.only:
            action = self.view.actions.index(self.only)
        elif self.learned.conditions.hold(len(state.charge.crew.clocks), observation):
            action = self.choose(observation)
        else:
            return replace(state, inside=False)
        signals, rule = self.view.choose(state.signals, action)
        return replace(state, inside=True, signals=signals, chosen=rule)

    def choose(self, observation: Observation) -> int:
        """The action of the greatest value."""
        return self.learned.network.best(observation)

    def in_charge(self, state: RLPState) -> Policy[Any]:
        """The chosen rule, or the fallback."""
        trusted = bool(self.only) or (state.inside and state.match.playing != FALLBACK)
        return state.chosen if trusted and state.chosen is not None else self.fixed


def swapped(charge: Charge, policy: Policy[Any]) -> Charge:
    """With another action of the paper in place of the one before; they share a state, so nobody hands over."""
    alike = isinstance(policy, ByAction) and isinstance(charge.policy, ByAction)
    return replace(charge, policy=policy) if alike else charge
