"""Greedy: while somebody straggles, the last policy of a sequence takes the place of the one that is due."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from polyrhythm.core import Bounds, Cluster, Decisions, Event, Policy, Stage, Traits
from polyrhythm.policies._lib.detector import Detector, DetectorState
from polyrhythm.policies._lib.relay import Relay
from polyrhythm.policies._lib.wrapping import joint_traits, require_waiting
from polyrhythm.policies.switch import Switch


@dataclass(frozen=True, slots=True)
class GreedyState:
    """Where the job stands in the sequence.

    Args:
        stages: the sequence.
        relay: the policy in force.
        watch: who straggles.
        served: samples applied but for those of detours.
        index: number of the stage in force.
        heading: number of the stage that begins next, while it is being handed over to.
    """

    stages: tuple[Stage, ...]
    relay: Relay
    watch: DetectorState = field(default_factory=DetectorState)
    served: int = 0
    index: int = 0
    heading: int = 0

    def wanted(self, processed: int) -> int:
        """Number of the stage that should be in force, given the samples that were applied."""
        last = len(self.stages) - 1
        served = self.served + (0 if self.away else processed - self.relay.roll.processed)
        due = next(number for number, stage in enumerate(self.stages) if served < stage.end_samples)
        return last if self.watch.stragglers else due

    @property
    def away(self) -> bool:
        """Whether the last policy is in force before its time."""
        last = len(self.stages) - 1
        return last > 0 and self.index == last and self.served < self.stages[-2].end_samples


@dataclass(frozen=True)
class Greedy(Policy[GreedyState]):
    """Sync-Switch's greedy policy: the sequence's last policy is in force while somebody straggles.

    Before the last part of a sequence such as ``bsp@0.25,asp`` is due, the last policy (ASP) is in force as long as the
    `Detector` names a straggler. Samples of such detours do not count towards the shares: BSP gets its full share as
    long as the workload lasts. Each change is a switch, costs what a switch costs and, where the sequence has
    ``late=drop``, drops the steps in flight.

    Args:
        policy: a sequence such as `Switch`; another policy runs as it is.
        detector: robust or sigma, the paper's method.
        window, patience, floor, sliding: see `Detector`; the paper's windows slide.

    Source: Sync-Switch (Li et al. 2021), section IV-B2.

    Example:
        >>> from polyrhythm.policies import parse_policy
        >>> parse_policy("greedy:(switch:bsp@0.25,asp)").spec
        'greedy:(switch:bsp@0.25,asp)'
    """

    policy: Policy[Any] = Switch()  # noqa: RUF009 (a frozen value)
    detector: str = "robust"
    window: int = 4
    patience: int = 2
    floor: float = 0.25
    sliding: bool = False

    name: ClassVar[str] = "greedy"
    summary: ClassVar[str] = "a switch that goes to its last policy while somebody straggles"

    def __post_init__(self) -> None:
        self._detector()
        require_waiting(self.name, self.policy)

    @property
    def traits(self) -> Traits:
        """Decisions depend on how late arrivals are."""
        return replace(joint_traits([self.policy]), placement="coordinator")

    def _detector(self) -> Detector:
        return Detector(self.detector, self.window, self.patience, self.floor, sliding=self.sliding)

    def init(self, cluster: Cluster) -> GreedyState:
        stages = self.policy.stages(cluster) or (Stage(self.policy),)
        served = cluster.processed_samples
        index = next(number for number, stage in enumerate(stages) if served < stage.end_samples)
        relay = Relay.start(stages[index].policy, cluster, any(stage.drops for stage in stages))
        return GreedyState(stages, relay, served=served, index=index)

    def in_force(self, state: GreedyState) -> Policy[Any]:
        return state.relay.policy

    @property
    def counts_shares(self) -> bool:
        """As the policy within."""
        return self.policy.counts_shares

    def bounds(self, cluster: Cluster) -> Bounds:
        """A gradient is as stale as the loosest policy lets it be; clocks may drift apart at each switch."""
        stages = self.policy.stages(cluster) or (Stage(self.policy),)
        return Bounds(staleness=max(stage.policy.bounds(cluster).staleness for stage in stages))

    def decide(self, state: GreedyState, event: Event) -> tuple[GreedyState, Decisions]:
        live = len(state.relay.roll.live_workers)
        state = replace(state, watch=self._detector().after(state.watch, event, live))

        def choose(processed: int) -> Policy[Any] | None:
            wanted = state.wanted(processed)
            return None if wanted == state.index else state.stages[wanted].policy

        relay, decisions = state.relay.decide(event, choose)
        return follow(state, relay), decisions


def follow(state: GreedyState, relay: Relay) -> GreedyState:
    served = state.served
    if not state.away:
        served += relay.roll.processed - state.relay.roll.processed
    index, heading = state.index, state.heading
    if state.relay.following is None and (relay.following is not None or relay.switches > state.relay.switches):
        heading = state.wanted(relay.roll.processed)
    if relay.switches > state.relay.switches:
        index = heading
    return GreedyState(state.stages, relay, state.watch, served, index, heading)
