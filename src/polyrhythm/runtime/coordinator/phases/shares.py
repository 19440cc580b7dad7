"""Whether a job can run a policy that counts shares of it, or deals the mini-batches of all in shares."""

from typing import Any

from polyrhythm.core import Policy
from polyrhythm.core.workload import UNKNOWN
from polyrhythm.errors import PolicyError
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.agreement import why_undealt
from polyrhythm.runtime.wire.job_config import OF_EPOCHS, OF_UNKNOWN


def check_lengths(policy: Policy[Any], job: Job) -> None:
    """A share of one epoch would be served long before its time, and one of what has no length never.

    Raises:
        PolicyError: if the policy counts shares of what has no known length.
    """
    if not policy.counts_shares:
        return
    if job.epoch >= 0 and (job.own_samples if job.own_data else job.workload.dataset_samples) >= UNKNOWN:
        raise PolicyError(f"policy {policy.spec} {OF_UNKNOWN}")
    if not job.epochs_given:
        raise PolicyError(f"policy {policy.spec} {OF_EPOCHS}")


def check_shares(policy: Policy[Any], job: Job) -> None:
    """Unequal mini-batches need one order that all read from, one size, and gradients of each alone.

    Raises:
        PolicyError: if the policy deals shares, and the job cannot.
    """
    ready = [member.ready for member in job.members.values() if member.ready]
    if policy.traits.shares and (why := why_undealt(ready, job.workload.shared)):
        raise PolicyError(f"policy {policy.spec} deals the mini-batches of all in shares, but {why}")


def check_own_data(policy: Policy[Any], job: Job) -> None:
    """A job cannot cut the mini-batches of a script that reads them itself.

    A script that begins under such a policy is refused by its worker, which knows the line.

    Raises:
        PolicyError: if the policy would.
    """
    if policy.traits.shares and any(member.ready.own for member in job.members.values() if member.ready):
        raise PolicyError(
            f"policy {policy.spec} deals the mini-batches of all in shares, but the script reads its data itself"
        )
