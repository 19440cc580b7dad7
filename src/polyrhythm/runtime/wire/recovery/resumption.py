"""Where a script's own checkpoint was taken within an epoch: what is still to be made of it, and under which policy."""

from collections.abc import Iterator

import msgspec

from polyrhythm.core.workload import SampleRange, WorkloadState


class Resumption(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What of an epoch is `left`, by its positions.

    The phase ran under `policy`, in this `state`; the `chosen` one, which may put others in force, had `known` so much.
    Both are texts.
    """

    left: tuple[SampleRange, ...] = ()
    policy: str = ""
    state: str = ""
    chosen: str = ""
    known: str = ""

    @property
    def samples(self) -> int:
        """How many of them are left."""
        return sum(sample_range.samples for sample_range in self.left)


def left_of(workload: WorkloadState) -> tuple[SampleRange, ...]:
    """What is not handed out of the epoch that is under way.

    >>> left_of(WorkloadState(10, 20, 16, (SampleRange(1, 2, 4),)))
    (SampleRange(epoch=0, start=2, stop=4), SampleRange(epoch=0, start=6, stop=10))
    """
    return tuple(SampleRange(0, start, stop) for start, stop in sorted(pieces(workload)))


def pieces(workload: WorkloadState) -> Iterator[tuple[int, int]]:
    yield from ((start, stop) for _, start, stop in workload.returned)
    if workload.handed_out < workload.total_samples:
        yield workload.handed_out % workload.dataset_samples, workload.dataset_samples


def begun(dataset_samples: int, left: tuple[SampleRange, ...]) -> WorkloadState:
    """A job's first epoch, of which so much is left.

    >>> left_of(begun(10, (SampleRange(0, 2, 4), SampleRange(0, 6, 10))))
    (SampleRange(epoch=0, start=2, stop=4), SampleRange(epoch=0, start=6, stop=10))
    """
    return WorkloadState(dataset_samples, dataset_samples, dataset_samples, left)
