"""Whether a job can run a policy that deals the mini-batches of all in shares."""

from typing import Any

from polyrhythm.core import Policy
from polyrhythm.errors import PolicyError
from polyrhythm.runtime.coordinator.job import Job


def check_shares(policy: Policy[Any], job: Job) -> None:
    """Unequal mini-batches need one order that all read from, and one size that they are about.

    Raises:
        PolicyError: if the policy deals shares, and the job cannot.
    """
    if not policy.traits.shares:
        return
    sizes = {m.ready.batch_size for m in job.members.values() if m.ready}
    why = "" if len(sizes) == 1 else f"but the ranks ask for {sorted(sizes)}; give all the same batch_size"
    if not job.workload.shared:
        why = "but the workers read shards of their own; use partition='shared'"
    if why:
        raise PolicyError(f"policy {policy.spec} deals the mini-batches of all in shares, {why}")
