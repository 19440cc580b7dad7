"""A policy that watches a job and wants another one in force every few steps."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar

from polyrhythm.core import Cluster, Decisions, Event, Policy, Report, Supervisor, Traits
from polyrhythm.policies import parse_policy

ARMS = tuple(map(parse_policy, ("bsp", "balanced", "asp", "local:2", "k-sync:2", "esync")))
STEPS = 9


@dataclass(frozen=True, slots=True)
class ChangingState:
    """Steps of all, which arms cannot run, and the last of these."""

    steps: int = 0
    barred: frozenset[str] = frozenset()
    remark: str = ""


class Changing(Supervisor[ChangingState]):
    """Wants the next arm after every `STEPS` steps; only drivers that follow what it wants run it."""

    name: ClassVar[str] = "changing"
    summary: ClassVar[str] = "another policy every few steps"
    traits: ClassVar[Traits] = Traits()

    def init(self, cluster: Cluster) -> ChangingState:
        del cluster
        return ChangingState()

    def decide(self, state: ChangingState, event: Event) -> tuple[ChangingState, Decisions]:
        raise AssertionError("the driver runs what is wanted by itself")

    def wanted(self, state: ChangingState) -> Policy[Any]:
        arms = [arm for arm in ARMS if arm.spec not in state.barred]
        return arms[state.steps // STEPS % len(arms)]

    def observe(self, state: ChangingState, policy: Policy[Any], event: Event, decisions: Decisions) -> ChangingState:
        del decisions
        if not isinstance(event, Report):
            return state
        return replace(state, steps=state.steps + 1, remark=f"{policy.spec} made step {event.clock}")

    def bar(self, state: ChangingState, policy: Policy[Any], reason: str) -> ChangingState:
        return replace(state, barred=state.barred | {policy.spec}, remark=reason)

    def remark(self, state: ChangingState) -> str:
        return state.remark
