"""What only single replicas have seen, because an exchange has failed, until the members agree on a state."""

from collections.abc import Mapping

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.phases.synchronous import count_samples


class UnsynchronisedSamples:
    """Positions whose steps only single replicas have seen.

    Args:
        job: whose samples they are; they count as processed as long as their worker lives.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self._noted: dict[int, tuple[SampleRange, ...]] = {}

    def note(self, unsynchronised: Mapping[int, tuple[SampleRange, ...]]) -> None:
        self._noted |= unsynchronised

    def settle(self) -> None:
        """Everyone has them, as the members of a phase have agreed on a state; or the job goes back to before them."""
        self._noted.clear()

    def revoke(self) -> None:
        """What only replicas of workers that are gone have seen is lost."""
        for worker in set(self._noted) - set(self._job.members):
            sample_ranges = self._noted.pop(worker)
            self._job.samples -= count_samples(sample_ranges)
            self._job.give_back(
                [sample_range for sample_range in sample_ranges if sample_range.epoch == self._job.epoch]
            )
            self._job.skipped_samples += count_samples(
                sample_range for sample_range in sample_ranges if sample_range.epoch != self._job.epoch
            )
