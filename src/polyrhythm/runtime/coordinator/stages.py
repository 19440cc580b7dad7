"""The stages of a job: each policy of a sequence runs in a phase of its own, and so in its own
placement.

A synchronous phase stops by itself after the step that serves its share; on the servers no further step starts once
the share is applied. Both happen in the middle of an epoch.
"""

from dataclasses import replace
from typing import Any

from polyrhythm.core import Policy, Stage
from polyrhythm.core.placement import runtime_placement
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.local_steps import LocalStepPhase
from polyrhythm.runtime.coordinator.measured import MeasuredPhase
from polyrhythm.runtime.coordinator.parameter_server import ParameterServerPhase
from polyrhythm.runtime.coordinator.synchronous import SynchronousPhase


class Stages:
    """Which policy is due.

    Args:
        policy: what the job was asked to run, a sequence or not.
        epochs: epochs that the job plans; shares are of all their samples.

    Raises:
        PolicyError: if a policy of it has no placement on real workers.
    """

    def __init__(self, policy: Policy[Any], epochs: int) -> None:
        runtime_placement(policy)
        self.policy = policy
        self._epochs = epochs

    def stage(self, job: Job) -> Stage:
        cluster = replace(job.cluster(self._epochs), processed_samples=job.done_samples)
        stages = self.policy.stages(cluster)
        return next((s for s in stages if s.end_samples > cluster.processed_samples), Stage(self.policy))


def kind_of(policy: Policy[Any]) -> type[ParameterServerPhase | SynchronousPhase]:
    """The kind of phase that runs this policy."""
    placement = runtime_placement(policy)
    if placement == "servers":
        return ParameterServerPhase
    if placement == "coordinator":
        return LocalStepPhase
    return MeasuredPhase if policy.traits.placement == "every_rank" else SynchronousPhase
