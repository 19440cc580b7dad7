"""How a phase runs under its policy: one class for each placement of real workers."""

from typing import Any, TypeAlias

from polyrhythm.core import Cluster, Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.local_steps import LocalStepPhase
from polyrhythm.runtime.coordinator.measured import MeasuredPhase
from polyrhythm.runtime.coordinator.parameter_server import ParameterServerPhase
from polyrhythm.runtime.coordinator.synchronous import SynchronousPhase

Mode: TypeAlias = ParameterServerPhase | SynchronousPhase

AmongWorkers: TypeAlias = SynchronousPhase | LocalStepPhase
"""Phases in which the workers hold the newest parameters, so that the loss of a member ends them."""


def make_mode(job: Job, policy: Policy[Any], cluster: Cluster) -> Mode:
    """What runs a phase under `policy`."""
    placement = runtime_placement(policy)
    if placement == "servers":
        return ParameterServerPhase(job, policy, cluster)
    if placement == "coordinator":
        return LocalStepPhase(job, policy, cluster)
    return (MeasuredPhase if policy.traits.placement == "every_rank" else SynchronousPhase)(job, policy, cluster)
