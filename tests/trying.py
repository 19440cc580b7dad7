"""A policy that tries others for a few steps each, and undoes what they have made of the parameters."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from polyrhythm.core import Cluster, Decisions, Event, Policy, Report, Supervisor, Traits
from polyrhythm.policies import BSP, parse_policy

ARMS = tuple(map(parse_policy, ("asp", "local:2", "local:3", "ssp:1")))
STEPS = 9


@dataclass(frozen=True, slots=True)
class TryingState:
    """Steps of all under what was wanted."""

    steps: int = 0


class Trying(Supervisor[TryingState]):
    """BSP and one of the others in turn, each for `STEPS` steps; only drivers that follow what it wants run it."""

    name: ClassVar[str] = "trying"
    summary: ClassVar[str] = "trials that come to nothing"
    traits: ClassVar[Traits] = Traits()

    def init(self, cluster: Cluster) -> TryingState:
        del cluster
        return TryingState()

    def decide(self, state: TryingState, event: Event) -> tuple[TryingState, Decisions]:
        raise AssertionError("the driver runs what is wanted by itself")

    def wanted(self, state: TryingState) -> Policy[Any]:
        turn, is_trial = divmod(state.steps // STEPS, 2)
        return ARMS[turn % len(ARMS)] if is_trial else BSP()

    def keeps(self, state: TryingState) -> bool:
        return state.steps % STEPS == 0 and self.wanted(state) != BSP()

    def goes_back(self, state: TryingState) -> bool:
        return state.steps % STEPS == 0 and self.wanted(state) == BSP()

    def observe(self, state: TryingState, policy: Policy[Any], event: Event, decisions: Decisions) -> TryingState:
        del decisions
        counts = isinstance(event, Report) and policy == self.wanted(state)
        return replace(state, steps=state.steps + counts)

    def bar(self, state: TryingState, policy: Policy[Any], reason: str) -> TryingState:
        raise AssertionError(f"{policy.spec}: {reason}")
