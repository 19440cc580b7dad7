"""Auto: BSP, and whatever is surely faster, chosen while the job runs."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

from polyrhythm.core import Bounds, Cluster, Decisions, Event, Policy, Supervisor, Traits
from polyrhythm.errors import SpecError
from polyrhythm.policies._lib.relay import Relay
from polyrhythm.policies._lib.wrapping import joint_traits, require_waiting
from polyrhythm.policies.auto.arms import REFERENCE
from polyrhythm.policies.auto.learning import rungs
from polyrhythm.policies.auto.mind import Mind, Permits
from polyrhythm.policies.balanced import Balanced
from polyrhythm.policies.k_sync import KSync

ALLOWED = ("exact", "local", "async")


@dataclass(frozen=True, slots=True)
class AutoState:
    """What is known and wanted, and the policy in force where this policy runs it itself."""

    mind: Mind
    relay: Relay


@dataclass(frozen=True)
class Auto(Supervisor[AutoState]):
    """BSP, in unequal shares once these surely pay, and what is surely faster, as long as it is.

    An arm that changes the gradients is first on trial. If its loss rises, the job goes back to the parameters that it
    had before; otherwise BSP goes on from what the trial has made of them.

    Args:
        allow: what the others may do to the gradients. exact: nothing, which leaves `balanced`; local: steps on
            replicas, too (`local`, `selsync`, `diloco`); async: also stale gradients (`asp`, `ssp`, `k-async`).
        risk: share of its time by which the job may be behind BSP before an exact arm goes, one round at least; a trial
            of another arm may cost as large a share of half the time that the job is planned to take, unless it is
            surely faster. 0: there is no trial.
        drop: whether the slowest steps may be dropped (`k-sync`).
        most: largest share of a worker under `balanced`; inf: no limit.
        also: one more policy to be tried, such as a switch or a learned one.

    Example:
        >>> from polyrhythm.policies import parse_policy
        >>> parse_policy("auto").spec, parse_policy("auto:drop=true").spec
        ('auto', 'auto:drop=True')
    """

    allow: str = "exact"
    risk: float = 0.02
    drop: bool = False
    most: float = float("inf")
    also: Policy[Any] | None = None

    name: ClassVar[str] = "auto"
    summary: ClassVar[str] = "BSP, and what is surely faster, chosen while the job runs"

    def __post_init__(self) -> None:
        if self.allow not in ALLOWED:
            raise SpecError(f"allow must be one of {', '.join(ALLOWED)} but got {self.allow!r}")
        if not 0 <= self.risk < 1:
            raise SpecError(f"risk must be a share from 0 to below 1 but got {self.risk}")
        Balanced(self.most)
        if self.also is not None:
            require_waiting(self.name, self.also)

    @property
    def arms(self) -> list[Policy[Any]]:
        """All that may come into force, for any number of workers."""
        first: list[Policy[Any]] = [REFERENCE, Balanced(self.most), *([KSync(1)] if self.drop else [])]
        return [*first, *(rung.policy for rung in rungs(self.allow, 2, self.also))]

    @property
    def traits(self) -> Traits:
        """All that any arm needs."""
        joint = joint_traits(self.arms)
        return joint if self.learns_from is None else replace(joint, needs=joint.needs | {self.learns_from})

    @property
    def learns_from(self) -> Literal["loss"] | None:
        """What it has to be told of each step to judge arms that change the gradients."""
        return None if self.allow == "exact" and self.also is None else "loss"

    @property
    def spec(self) -> str:
        given = super().spec
        return given.replace(f"{self.name}:exact", self.name, 1).replace(f"{self.name},", f"{self.name}:", 1)

    def bounds(self, cluster: Cluster) -> Bounds:
        """Those of the exact arms; none if others are allowed."""
        if self.learns_from is not None:
            return Bounds()
        return Bounds(staleness=0) if self.drop else Bounds(lead=1, staleness=0)

    def init(self, cluster: Cluster) -> AutoState:
        mind = Mind.start(cluster, self.permits())
        return AutoState(mind, Relay.start(mind.arm, cluster))

    def permits(self) -> Permits:
        return Permits(self.risk, self.drop, self.most, self.allow, self.also)

    def in_force(self, state: AutoState) -> Policy[Any]:
        return state.relay.policy

    def wanted(self, state: AutoState) -> Policy[Any]:
        return state.mind.wanted

    def remark(self, state: AutoState) -> str:
        return state.mind.remark

    def figures(self, state: AutoState) -> dict[str, float]:
        """Changes of policy, and the time that the job is ahead of where BSP would have been."""
        return {"changes": state.mind.changes, "saved_s": state.mind.saved_s}

    def keeps(self, state: AutoState) -> bool:
        return state.mind.keeps

    def goes_back(self, state: AutoState) -> bool:
        return state.mind.undone

    def bar(self, state: AutoState, policy: Policy[Any], reason: str) -> AutoState:
        return replace(state, mind=state.mind.barring(policy, reason))

    def resumed(self, state: AutoState) -> AutoState:
        return replace(state, mind=state.mind.resumed(self.permits()))

    def observe(self, state: AutoState, policy: Policy[Any], event: Event, decisions: Decisions) -> AutoState:
        return AutoState(state.mind.after(self.permits(), policy, event, decisions), state.relay)

    def decide(self, state: AutoState, event: Event) -> tuple[AutoState, Decisions]:
        wanted, relay = state.mind.wanted, state.relay

        def choose(processed: int) -> Policy[Any] | None:
            del processed
            return None if wanted == relay.policy else wanted

        # Exact arms come to rest by themselves, and what is decided there is whole.
        rests = relay.policy.name in ("bsp", "balanced", "k-sync")
        after, decisions = relay.decide(event, choose, rests)
        return AutoState(state.mind.after(self.permits(), after.policy, event, decisions), after), decisions
