"""What only single replicas have seen, because an exchange has failed, until the members agree on a state."""

from collections.abc import Mapping, Sequence

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.phases.rank_progress import count_samples


class UnsynchronisedSamples:
    """Positions whose steps only single replicas have seen, or only those of some members.

    Args:
        job: whose samples they are; they count as processed as long as somebody lives who has them.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.noted: list[tuple[set[int], Sequence[SampleRange]]] = []

    def note(self, unsynchronised: Mapping[int, Sequence[SampleRange]]) -> None:
        """Only the replica of that worker has seen these."""
        self.noted += [({worker}, sample_ranges) for worker, sample_ranges in unsynchronised.items()]

    def note_of_all(self, workers: Sequence[int], sample_ranges: Sequence[SampleRange]) -> None:
        """The replica of each of these workers has seen all of these."""
        self.noted.append(({*workers}, sample_ranges))

    def taken_over(self, workers: Sequence[int]) -> None:
        """These workers have come to the state in which all of it is."""
        for having, _ in self.noted:
            having.update(workers)

    def forget(self, worker: int) -> None:
        """What it had is gone with it."""
        for having, _ in self.noted:
            having.discard(worker)

    def settle(self) -> None:
        """Everyone has them, as the members of a phase have agreed on a state; or the job goes back to before them."""
        self.noted.clear()

    def revoke(self) -> None:
        """What only replicas of workers that are gone have seen is lost."""
        lost = [sample_ranges for workers, sample_ranges in self.noted if workers.isdisjoint(self._job.members)]
        self.noted = [(workers, each) for workers, each in self.noted if not workers.isdisjoint(self._job.members)]
        for sample_ranges in lost:
            self._job.samples -= count_samples(sample_ranges)
            self._job.give_back(
                [sample_range for sample_range in sample_ranges if sample_range.epoch == self._job.epoch]
            )
            self._job.skipped_samples += count_samples(
                sample_range for sample_range in sample_ranges if sample_range.epoch != self._job.epoch
            )
