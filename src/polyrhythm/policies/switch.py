"""Switch: one policy after the other, each for its share of the workload, in the running job."""

import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from polyrhythm.core import Bounds, Cluster, Decisions, Event, Part, Policy, Stage, Traits
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.relay import Relay
from polyrhythm.policies._lib.wrapping import joint_traits
from polyrhythm.policies.asp import ASP
from polyrhythm.policies.bsp import BSP
from polyrhythm.policies.tuned import Tuned

ROUNDING = 1e-9
"""What a sum of shares may lack to be the whole."""


@dataclass(frozen=True, slots=True)
class SwitchState:
    """The stages from the one in force on, and the policy in force with all that a hand-over needs."""

    stages: tuple[Stage, ...]
    relay: Relay

    def following(self, processed: int) -> Policy[Any] | None:
        if processed < self.stages[0].end_samples:
            return None
        return next(stage.policy for stage in self.stages if processed < stage.end_samples)


@dataclass(frozen=True)
class Switch(Policy[SwitchState]):
    """Sync-Switch: a sequence of policies, each for a share of the workload, in the running job.

    Part k with share s_k is in force until ``(s_1 + ... + s_k) * workload_samples`` samples have been applied. Then
    nobody is started any more until steps in flight have finished and are applied, each when it arrives, or are dropped
    and counted (see `polyrhythm.policies._lib.relay`); the next part is told of everyone present as `Joined`. A share
    of 0 is left out, and one that reaches 1 never ends: ``bsp@1,asp`` is BSP and ``bsp@0,asp`` is ASP.

    Args:
        parts: the policies with their shares; the last may go without one and has the rest.
        momentum: from the first switch on: same, zero, 1/n, 2^i/n, i/n or a number; see `Tuned`.
        lr: factor on the learning rate from the first switch on, beside what ``lr_convention`` does for every policy:
            under "linear" BSP steps at n * eta and ASP at eta already.
        batch: samples of a mini-batch from the first switch on; 0 is as before. BSP's n mini-batches of B are its
            global batch n * B.
        late: what becomes of steps in flight at a switch: finish or drop.

    Source: Sync-Switch (Li et al. 2021), sections IV-B and IV-C. Differs: it counts samples and not steps, switches
    without a restart, and takes any sequence.

    Example:
        >>> from polyrhythm.core import Cluster
        >>> from polyrhythm.policies import parse_policy
        >>> policy = parse_policy("switch:bsp@0.25,(ssp:3)@0.5,asp")
        >>> [(stage.policy.spec, stage.end_samples) for stage in policy.stages(Cluster(4, workload_samples=1000))]
        [('bsp', 250.0), ('ssp:3', 750.0), ('asp', inf)]
    """

    parts: tuple[Part, ...] = (Part(BSP(), 0.5), Part(ASP()))
    momentum: str = "same"
    lr: float = 1.0
    batch: int = 0
    late: str = "finish"

    name: ClassVar[str] = "switch"
    summary: ClassVar[str] = "one policy after the other, each for its share of the workload"

    def __post_init__(self) -> None:
        check_shares(self.parts)
        Tuned(ASP(), self.lr, self.momentum, self.batch)
        if self.late not in ("finish", "drop"):
            raise SpecError(f"late must be finish or drop but got {self.late!r}")

    @property
    def traits(self) -> Traits:
        """All that any part needs that gets anything to do."""
        joint = joint_traits(stage.policy for stage in self.stages(Cluster(1)))
        return replace(joint, cancels=True) if self.late == "drop" else joint

    def stages(self, cluster: Cluster) -> tuple[Stage, ...]:
        """The parts that get anything to do, each until the sum of the shares up to it is served."""
        stages: list[Stage] = []
        end = 0.0
        for number, part in enumerate(self.parts):
            end = math.inf if part.share is None else end + part.share
            # The last update of a whole workload would be a switch that nobody lives to see.
            end = math.inf if end > 1 - ROUNDING else end
            if part.share != 0:
                policy = self._tuned(part.policy) if number else part.policy
                stages.append(Stage(policy, end * cluster.workload_samples, self.late == "drop"))
            if end == math.inf:
                break
        return tuple(stages)

    def _tuned(self, policy: Policy[Any]) -> Policy[Any]:
        """A part after the first with what is set from there on."""
        if (self.momentum, self.lr, self.batch) == ("same", 1.0, 0):
            return policy
        return Tuned(policy, self.lr, self.momentum, self.batch)

    def init(self, cluster: Cluster) -> SwitchState:
        left = tuple(stage for stage in self.stages(cluster) if stage.end_samples > cluster.processed_samples)
        return SwitchState(left, Relay.start(left[0].policy, cluster, self.late == "drop"))

    def in_force(self, state: SwitchState) -> Policy[Any]:
        return state.relay.policy

    def bounds(self, cluster: Cluster) -> Bounds:
        """Leads of successive policies may add up; a gradient is as stale as the loosest policy lets it be."""
        each = [stage.policy.bounds(cluster) for stage in self.stages(cluster)]
        return Bounds(sum(bounds.lead for bounds in each), max(bounds.staleness for bounds in each))

    def decide(self, state: SwitchState, event: Event) -> tuple[SwitchState, Decisions]:
        relay, decisions = state.relay.decide(event, state.following)
        stages = state.stages
        if relay.switches > state.relay.switches:
            stages = tuple(stage for stage in stages if stage.end_samples > relay.roll.processed)
        return SwitchState(stages, relay), decisions


def check_shares(parts: tuple[Part, ...]) -> None:
    """Shares are in [0, 1] and cover the workload; only the last part may go without one."""
    if not parts:
        raise SpecError("switch needs at least one policy, as in 'switch:bsp@0.5,asp'")
    for part in parts:
        if not isinstance(part, Part):
            raise SpecError(f"parts must be Parts, as in (Part(BSP(), 0.5), Part(ASP())), but got {part!r}")
    for part in parts[:-1]:
        if part.share is None:
            raise SpecError(f"part {part.policy.spec!r} of a switch needs a share, as in '{part.policy.spec}@0.5'")
    for part in parts:
        if len(parts) > 1 and not part.policy.traits.waits:
            raise SpecError(f"part {part.policy.spec!r} of a switch must let workers wait for its answers")
    shares = [part.share for part in parts if part.share is not None]
    if not all(0 <= share <= 1 for share in shares) or sum(shares) > 1 + ROUNDING:
        raise SpecError(f"the shares of a switch must be in [0, 1] with a sum of at most 1 but got {shares}")
    if parts[-1].share is not None and sum(shares) < 1 - ROUNDING:
        raise SpecError(f"the shares of a switch add up to {sum(shares):g}; leave that of the last part out")
