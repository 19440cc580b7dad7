"""What a run is made of, and how its messages go."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyrhythm.core import Cluster, Policy
from polyrhythm.core.workload import Workload
from polyrhythm.errors import PolicyError, ScenarioError, UsageError
from polyrhythm.sim.cluster.faults import FaultPlan
from polyrhythm.sim.cluster.links import Network
from polyrhythm.sim.numerics import Numerics


@dataclass(slots=True)
class SimJob:
    """What a run is made of, one entry a worker in `durations` and `bandwidths`."""

    policy: Policy[Any]
    cluster: Cluster
    durations: list[Iterator[float]]
    bandwidths: list[float]
    network: Network
    plan: FaultPlan
    workload: Workload
    numerics: Numerics
    limit_s: float = math.inf
    switch_cost_s: float = 0.0
    epoch_end_s: float = 0.0
    finishes: bool = False


class TransportPlan(NamedTuple):
    """What a policy's traits mean for messages.

    Args:
        ring: averages go round a ring.
        reports: a step that pushes nothing ends in a message.
        coordinated: somebody has to tell the workers what was decided.
        waits: they wait for it.
    """

    ring: bool
    reports: bool
    coordinated: bool
    waits: bool


def transport_plan(policy: Policy[Any], network: Network) -> TransportPlan:
    traits = policy.traits
    coordinated = traits.placement == "coordinator"
    ring = network.averaging == "ring" and not coordinated
    return TransportPlan(ring, traits.placement != "clock", coordinated, traits.waits)


def deadlock(policy: Policy[Any], now_s: float, waiting: list[int], samples_left: int) -> UsageError:
    if not waiting:
        return ScenarioError(
            f"all workers have left and {samples_left} samples are not processed; "
            "let one come back (faults.leaves.back_after_s) or stay"
        )
    named = ", ".join(map(str, waiting[:8])) + (", ..." if len(waiting) > 8 else "")
    return PolicyError(
        f"policy {policy.spec} is deadlocked at {now_s:g} s: workers {named} wait, none runs, "
        f"and {samples_left} samples are left; release somebody when the last report or Left arrives"
    )
