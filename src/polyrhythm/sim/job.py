"""What a run is made of, and how its messages go."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from polyrhythm.core import Cluster, Policy
from polyrhythm.core.workload import Workload
from polyrhythm.sim.faults import Plan
from polyrhythm.sim.links import Network
from polyrhythm.sim.numerics import Numerics


@dataclass(slots=True)
class Job:
    """What a run is made of, one entry a worker in `durations` and `bandwidths`."""

    policy: Policy[Any]
    cluster: Cluster
    durations: list[Iterator[float]]
    bandwidths: list[float]
    network: Network
    plan: Plan
    workload: Workload
    numerics: Numerics
    limit_s: float = math.inf
    switch_cost_s: float = 0.0


class Carriage(NamedTuple):
    """What a policy's traits mean for messages.

    Args:
        ring: averages go round a ring.
        reports: a step that pushes nothing ends in a message.
        arbitrated: somebody has to tell the workers what was decided.
        waits: they wait for it.
    """

    ring: bool
    reports: bool
    arbitrated: bool
    waits: bool


def carriage(policy: Policy[Any], network: Network) -> Carriage:
    """How messages go under a policy."""
    traits = policy.traits
    arbitrated = traits.venue == "arbitrated"
    ring = network.averaging == "ring" and not arbitrated
    return Carriage(ring, traits.venue != "scheduled", arbitrated, traits.waits)
