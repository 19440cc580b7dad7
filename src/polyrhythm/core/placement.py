"""Where real workers take a policy's decisions, and where the newest parameters are meanwhile."""

from typing import Any, Literal, TypeAlias

from polyrhythm.core import Cluster, Policy, Supervisor, all_stages
from polyrhythm.core.driver import answer_of, wanted_by
from polyrhythm.errors import PolicyError

RuntimePlacement: TypeAlias = Literal["servers", "every_rank", "coordinator"]
"""The coordinator decides about gradients that the servers apply; every rank decides in synchronous mode; the
coordinator decides about
replicas, which average among themselves."""


def runtime_placement(policy: Policy[Any]) -> RuntimePlacement:
    """Which of the three; that of the first policy, if the policy is a sequence or chooses.

    Raises:
        PolicyError: if its decisions, or those of a policy in the sequence, have no placement here.
    """
    if isinstance(policy, Supervisor):
        return runtime_placement(wanted_by(policy, answer_of(policy, "in init", policy.init, Cluster(1))))
    stages = answer_of(policy, "in stages", policy.stages, Cluster(1))
    if placements := [part_placement(stage.policy) for stage in stages]:
        return placements[0]
    traits = policy.traits
    if traits.shares and not traits.steady:
        raise PolicyError(
            f"policy {policy.spec} cannot run on real workers: shares are dealt there by a policy that nothing wraps, "
            "such as balanced; simulate it"
        )
    if "probe_loss" in traits.needs:
        raise PolicyError(
            f"policy {policy.spec} cannot run on real workers: servers have the newest parameters and no model to "
            "evaluate a probe batch with; take the loss of the mini-batches (loss=running), or simulate it"
        )
    if traits.placement == "clock":
        return "every_rank"
    if len(traits.exchanges) > 1 or (traits.placement, *traits.exchanges) == ("every_rank", "gradients"):
        raise PolicyError(
            f"policy {policy.spec} cannot run on real workers: {traits.placement} decisions about steps on "
            f"{' and on '.join(sorted(traits.exchanges))} have no placement there; simulate it"
        )
    if traits.placement == "every_rank":
        return "every_rank"
    if "gradients" in traits.exchanges and not traits.waits:
        raise PolicyError(
            f"policy {policy.spec} cannot run on real workers: whoever steps on the servers' parameters waits for the "
            "answer to its report; simulate it"
        )
    return "servers" if "gradients" in traits.exchanges else "coordinator"


def policies_of(policy: Policy[Any]) -> list[Policy[Any]]:
    """Those of a sequence, with those of one within it in its place; of any other policy itself.

    Raises:
        PolicyError: if it cannot say.

    >>> from polyrhythm.policies import parse_policy
    >>> [each.spec for spec in ("switch:bsp@0.5,asp", "bsp") for each in policies_of(parse_policy(spec))]
    ['bsp', 'asp', 'bsp']
    """
    stages = answer_of(policy, "in stages", all_stages, policy, Cluster(1))
    return [stage.policy for stage in stages] or [policy]


def apart_after(policy: Policy[Any], spec: str) -> bool:
    """Whether workers make steps of their own in a part of a sequence that comes after this one, wherever it stands.

    >>> from polyrhythm.policies import parse_policy
    >>> [apart_after(parse_policy("switch:bsp@0.5,asp"), spec) for spec in ("bsp", "asp", "local:4")]
    [True, False, False]
    """
    parts = policies_of(policy)
    last = max((number for number, part in enumerate(parts) if part.spec == spec), default=len(parts))
    return any(runtime_placement(part) != "every_rank" for part in parts[last + 1 :])


def part_placement(policy: Policy[Any]) -> RuntimePlacement:
    """The same for a part of a sequence: one that chooses others is not asked there what it wants."""
    if isinstance(policy, Supervisor) and policy.traits.placement != "clock":
        raise PolicyError(
            f"policy {policy.spec} cannot run on real workers as a part of a sequence, where all that it chooses has "
            "one placement; let it lead the job, with the sequence as its `also`, or simulate it"
        )
    return runtime_placement(policy)
