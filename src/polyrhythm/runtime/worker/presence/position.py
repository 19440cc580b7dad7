"""How far the job is in its epochs, as one of its workers can tell."""

from polyrhythm.core.workload import UNKNOWN
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.worker.context import DrawnBatch


class EpochPosition:
    """Counts what the job has dealt out, as far as this worker sees it.

    With a shard of its own a worker takes it that the others are as far as itself.
    """

    def __init__(self) -> None:
        self.epoch, self._dataset_samples, self._position = -1, 0, 0
        self._own_samples: int | None = None

    def begin(self, ready: Ready) -> None:
        self.epoch, self._dataset_samples, self._position = ready.epoch, ready.dataset_samples, 0
        self._own_samples = 0 if ready.shards else None

    @property
    def samples(self) -> int:
        """Samples that the job had dealt out before the mini-batch that the script has."""
        return max(self.epoch, 0) * self._dataset_samples + self._position

    def end(self) -> None:
        """The epoch is over for everyone, and its last mini-batches are dealt out, too."""
        if self._dataset_samples != UNKNOWN:
            self._position = self._dataset_samples

    def deal(self, draw: DrawnBatch, apart: bool, members: int) -> None:
        if self._own_samples is None:
            # Workers that step by themselves get returned positions, too, but the job does not go back with them.
            self._position = max(self._position, draw.before) if apart else draw.before
        else:
            self._position = min(self._own_samples * members, self._dataset_samples)
            self._own_samples += draw.samples
