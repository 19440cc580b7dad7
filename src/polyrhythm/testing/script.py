"""What happens to a cluster, as data: durations, deaths and arrivals. A failing run can be printed and run again."""

from dataclasses import dataclass

from polyrhythm.core import LeftReason


@dataclass(frozen=True)
class Fault:
    """A worker leaves at a step, or later, when it stands at the end of its epoch.

    Args:
        worker: who.
        step: in which of the steps that it starts, counted from 0; a cancelled step counts.
        at: when, as a share of that step's duration: below 1 it is running, from 1 on it has reported.
        reason: why.
    """

    worker: int
    step: int
    at: float = 0.5
    reason: LeftReason = "died"


@dataclass(frozen=True)
class LateJoin:
    """Workers that join later; they take the smallest numbers that are free, also of those that have died."""

    time_s: float
    workers: int = 1


@dataclass(frozen=True)
class ClusterScript:
    """One run of a cluster.

    Args:
        workers: how many start.
        durations: seconds of step s of worker p: ``durations[p % len][s % len]``.
        total_samples: the whole workload.
        dataset_samples: samples of an epoch.
        batch_size: samples of a mini-batch.
        faults: who leaves.
        arrivals: who joins later.
        alarm_delay_s: how late every alarm is.
        latency_s: how long reports and words travel between the coordinator and workers that do not wait for answers.
        meets: whether all workers end an epoch before any begins the next, as on real workers.
    """

    workers: int = 2
    durations: tuple[tuple[float, ...], ...] = ((1.0,),)
    total_samples: int = 20
    dataset_samples: int = 20
    batch_size: int = 1
    faults: tuple[Fault, ...] = ()
    arrivals: tuple[LateJoin, ...] = ()
    alarm_delay_s: float = 0.0
    latency_s: float = 0.0
    meets: bool = False

    def duration_s(self, worker: int, step: int) -> float:
        """Seconds of a step."""
        cycle = self.durations[worker % len(self.durations)]
        return cycle[step % len(cycle)]

    @property
    def everyone(self) -> int:
        """Workers that ever take part; one that joins again counts again."""
        return self.workers + sum(arrival.workers for arrival in self.arrivals)
