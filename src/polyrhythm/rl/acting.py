"""Policies for learning: one whose choices an agent makes, and one that watches what a fixed policy does."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Protocol

from polyrhythm.core import Cluster, Decisions, Event, LossMeasured, MeasureLoss, Policy, Proceed, Report, Traits
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.rlp.network import Conditions, Layer, Learned, ValueNetwork
from polyrhythm.policies.rlp.policy import LOSSES, RLP
from polyrhythm.policies.rlp.views import SMOOTHING, VIEWS, Observation

WINDOW = 3
"""Reports of each worker in a window."""


class Agent(Protocol):
    def choose(self, observation: Observation) -> int: ...


class Nobody:
    def choose(self, observation: Observation) -> int:
        raise AssertionError("an agent is needed")


def blank(view: str, window: int = WINDOW, loss: str = "running") -> Learned:
    """A policy of a view that has learned nothing and may be used anywhere."""
    inputs, actions = VIEWS[view].inputs, len(VIEWS[view].actions)
    layer = Layer(((0.0,) * inputs,) * actions, (0.0,) * actions)
    anywhere = Conditions((1, 10**9), (-math.inf,) * inputs, (math.inf,) * inputs)
    return Learned(view, window, "asp", anywhere, ValueNetwork((layer,)), loss=loss)


@dataclass(frozen=True)
class Acting(RLP):
    """`RLP` whose choices an agent makes, without probes of the fallback.

    Args:
        given: what stands in place of a file.
        agent: who chooses.
    """

    probe: int = 0
    given: Learned = field(default_factory=lambda: blank("phase"))
    agent: Agent = field(default_factory=Nobody, compare=False)

    name: ClassVar[str] = "acting"

    @property
    def learned(self) -> Learned:
        return self.given

    def choose(self, observation: Observation) -> int:
        return self.agent.choose(observation)


def ignore(observation: Observation, action: int) -> None:
    del observation, action


@dataclass(frozen=True, slots=True)
class WatchedState:
    """`held`: reports whose loss is not known yet, each with the action that followed it."""

    inner: Any
    signals: Any
    held: tuple[tuple[Report, int], ...] = ()


@dataclass(frozen=True)
class Watched(Policy[WatchedState]):
    """A fixed policy, told as the paper's actions: after each gradient nobody, its worker, or more go on.

    `loss` is what `RLP` says of it.
    """

    watched: Policy[Any] = field(default_factory=ASP)
    seen: Callable[[Observation, int], None] = field(default=ignore, compare=False)

    loss: str = "running"

    name: ClassVar[str] = "watched"
    summary: ClassVar[str] = "a policy whose actions are recorded"

    @property
    def traits(self) -> Traits:
        """Which loss it is to be told."""
        return LOSSES[self.loss]

    def init(self, cluster: Cluster) -> WatchedState:
        return WatchedState(self.watched.init(cluster), VIEWS["paper"].init())

    def decide(self, state: WatchedState, event: Event) -> tuple[WatchedState, Decisions]:
        inner, decisions = self.watched.decide(state.inner, event)
        state = replace(state, inner=inner)
        if isinstance(event, LossMeasured):
            (report, action), held = state.held[0], state.held[1:]
            return self.note(replace(state, held=held), report._replace(loss=event.loss), action, weight=1.0), decisions
        if not isinstance(event, Report):
            return state, decisions
        action = action_of(event.worker, decisions)
        if self.loss == "running":
            return self.note(state, event, action, SMOOTHING), decisions
        return replace(state, held=(*state.held, (event, action))), (*decisions, MeasureLoss(event.time_s))

    def note(self, state: WatchedState, report: Report, action: int, weight: float) -> WatchedState:
        view = VIEWS["paper"]
        signals, observation = view.observe(view.hear(state.signals, report, weight), None)
        assert observation is not None
        self.seen(observation, action)
        return replace(state, signals=signals)


def action_of(worker: int, decisions: Decisions) -> int:
    """The paper's action that these decisions amount to.

    >>> action_of(1, ()), action_of(1, (Proceed((1,)),)), action_of(1, (Proceed((0, 1)),))
    (0, 1, 2)
    """
    released = [name for decision in decisions if isinstance(decision, Proceed) for name in decision.workers]
    return 0 if not released else 1 if released == [worker] else 2
