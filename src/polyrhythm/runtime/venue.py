"""Where real workers take a policy's decisions, and where the newest parameters are meanwhile."""

from typing import Any, Literal, TypeAlias

from polyrhythm.core import Cluster, Policy
from polyrhythm.errors import PolicyError

Venue: TypeAlias = Literal["servers", "lockstep", "hub"]
"""The hub decides about gradients that the servers apply; every rank decides in lockstep; the hub decides about
replicas, which average among themselves."""


def venue_of(policy: Policy[Any]) -> Venue:
    """Which of the three; that of the first rule, if the policy is a sequence.

    Raises:
        PolicyError: if its decisions, or those of a rule in the sequence, have no venue here.
    """
    if venues := [venue_of(stage.policy) for stage in policy.stages(Cluster(1))]:
        return venues[0]
    traits = policy.traits
    if traits.venue == "scheduled":
        return "lockstep"
    if len(traits.exchanges) > 1 or (traits.venue, *traits.exchanges) == ("replicated", "gradients"):
        raise PolicyError(
            f"policy {policy.spec} cannot run on real workers: {traits.venue} decisions about steps on "
            f"{' and on '.join(sorted(traits.exchanges))} have no venue there; simulate it"
        )
    if traits.venue == "replicated":
        return "lockstep"
    return "servers" if "gradients" in traits.exchanges else "hub"
