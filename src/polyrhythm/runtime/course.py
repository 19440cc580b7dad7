"""The course of a job: each rule of a policy that is a sequence runs in a phase of its own, and so in its own venue.

A lockstep phase stops by itself behind the step that serves its share; on the servers no further step starts once the
share is applied. Both happen in the middle of an epoch.
"""

from dataclasses import replace
from typing import Any

from polyrhythm.core import Policy, Stage
from polyrhythm.runtime.arbitration import Arbitration
from polyrhythm.runtime.job import Job
from polyrhythm.runtime.lockstep import LockstepRun
from polyrhythm.runtime.measured import MeasuredRun
from polyrhythm.runtime.replica_run import ReplicaRun
from polyrhythm.runtime.venue import venue_of


class Course:
    """Which rule is due.

    Args:
        policy: what the job was asked to run, a sequence or not.
        epochs: epochs that the job plans; shares are of all their samples.

    Raises:
        PolicyError: if a rule of it has no venue on real workers.
    """

    def __init__(self, policy: Policy[Any], epochs: int) -> None:
        venue_of(policy)
        self.policy = policy
        self._epochs = epochs

    def stage(self, job: Job) -> Stage:
        """The rule that is due with what the job has processed, and when it ends."""
        cluster = replace(job.cluster(self._epochs), processed_samples=job.done_samples)
        stages = self.policy.stages(cluster)
        return next((s for s in stages if s.end_samples > cluster.processed_samples), Stage(self.policy))


def kind_of(policy: Policy[Any]) -> type[Arbitration | LockstepRun]:
    """The kind of phase that runs this rule."""
    venue = venue_of(policy)
    if venue == "servers":
        return Arbitration
    if venue == "hub":
        return ReplicaRun
    return MeasuredRun if policy.traits.venue == "replicated" else LockstepRun
