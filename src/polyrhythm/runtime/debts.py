"""What only single replicas have seen, because an exchange has failed, until the members agree on a state."""

from collections.abc import Mapping

from polyrhythm.core.workload import Lease
from polyrhythm.runtime.job import Job
from polyrhythm.runtime.lockstep import count_samples


class Debts:
    """Positions that workers owe the others.

    Args:
        job: whose samples they are; they count as processed as long as their worker lives.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._owed: dict[int, tuple[Lease, ...]] = {}

    def owe(self, debts: Mapping[int, tuple[Lease, ...]]) -> None:
        """A phase has ended with these."""
        self._owed |= debts

    def settle(self) -> None:
        """Everyone has them, as the members of a phase have agreed on a state; or the job goes back behind them."""
        self._owed.clear()

    def revoke(self) -> None:
        """What only replicas of workers that are gone have seen is lost."""
        for worker in set(self._owed) - set(self._job.members):
            leases = self._owed.pop(worker)
            self._job.samples -= count_samples(leases)
            self._job.give_back([lease for lease in leases if lease.epoch == self._job.epoch])
            self._job.skipped_samples += count_samples(lease for lease in leases if lease.epoch != self._job.epoch)
