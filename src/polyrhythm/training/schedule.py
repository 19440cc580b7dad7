"""Learning-rate schedules over samples: pure functions of the samples that the whole job has processed.

Counting optimizer steps instead would change a schedule's speed at every change of policy: one update consumes n
mini-batches under BSP and one under ASP.
"""

import math
from bisect import bisect_right
from dataclasses import dataclass

from polyrhythm.training.config import ScheduleKind, TrainingConfig


@dataclass(frozen=True, slots=True)
class RateSchedule:
    """Factor on the learning rate, ``warm(s) * shape(s)``, with s the share of the workload that is processed.

    warm(s) = min(1, s / warmup). shape(s) is 1 (constant), ``decay_factor ** (decays at or before s)`` (step) or
    ``(1 + cos(pi s)) / 2`` (cosine).

    Args:
        total_samples: workload of the whole job.
        kind: "constant", "step" or "cosine".
        decay_at: shares of the workload, ascending; for "step".
        decay_factor: factor of each decay.
        warmup: share of the workload.

    Example:
        >>> schedule = RateSchedule(1000, "step", decay_at=(0.5, 0.75), decay_factor=0.5)
        >>> [schedule(samples) for samples in (0, 499, 500, 750, 1000)]
        [1.0, 1.0, 0.5, 0.25, 0.25]
    """

    total_samples: int
    kind: ScheduleKind = "constant"
    decay_at: tuple[float, ...] = ()
    decay_factor: float = 0.1
    warmup: float = 0.0

    def __call__(self, samples: int) -> float:
        """Factor after `samples` of the job have been processed."""
        if self.kind == "constant" and not self.warmup:
            return 1.0
        share = min(1.0, samples / self.total_samples)
        warm = min(1.0, share / self.warmup) if self.warmup else 1.0
        return warm * self._shape(share)

    def _shape(self, share: float) -> float:
        if self.kind == "cosine":
            return (1.0 + math.cos(math.pi * share)) / 2.0
        return self.decay_factor ** bisect_right(self.decay_at, share)


def schedule_of(config: TrainingConfig, total_samples: int) -> RateSchedule:
    """The schedule of a configuration over a workload."""
    return RateSchedule(total_samples, config.schedule, config.decay_at, config.decay_factor, config.warmup)
