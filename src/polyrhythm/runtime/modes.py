"""How a phase runs under its policy: one class for each venue of real workers."""

from typing import Any, TypeAlias

from polyrhythm.core import Cluster, Policy
from polyrhythm.runtime.arbitration import Arbitration
from polyrhythm.runtime.job import Job
from polyrhythm.runtime.lockstep import LockstepRun
from polyrhythm.runtime.measured import MeasuredRun
from polyrhythm.runtime.replica_run import ReplicaRun
from polyrhythm.runtime.venue import venue_of

Mode: TypeAlias = Arbitration | LockstepRun

AmongWorkers: TypeAlias = LockstepRun | ReplicaRun
"""Phases in which the workers hold the newest parameters, so that the loss of a member ends them."""


def make_mode(job: Job, policy: Policy[Any], cluster: Cluster) -> Mode:
    """What runs a phase under `policy`."""
    venue = venue_of(policy)
    if venue == "servers":
        return Arbitration(job, policy, cluster)
    if venue == "hub":
        return ReplicaRun(job, policy, cluster)
    return (MeasuredRun if policy.traits.venue == "replicated" else LockstepRun)(job, policy, cluster)
