"""Scenarios: a cluster, a job and what goes wrong, as a strict value that a TOML file states."""

import math
from typing import Annotated, Any

import msgspec

from polyrhythm.core.arguments import whole_number
from polyrhythm.errors import ScenarioError
from polyrhythm.sim.cluster.compute import Compute
from polyrhythm.sim.cluster.faults import Faults
from polyrhythm.sim.cluster.links import BYTES_PER_GIGABIT, Network
from polyrhythm.sim.cluster.units import MOST_WORKERS, Count, Gigabits, PositiveSeconds, Seconds, WorkerCount
from polyrhythm.training.config import TrainingConfig


class Device(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """Workers of one kind; the workers are numbered from 0 in the order of the devices.

    >>> Scenario(devices=[Device(count=3), Device(compute_s=0.4)]).workers
    4
    """

    count: WorkerCount = 1
    """How many workers."""

    compute_s: PositiveSeconds = 0.1
    """Mean time to compute one mini-batch, in seconds."""

    bandwidth_gbps: Gigabits = math.inf
    """NIC of each worker in gigabits a second."""


class TimingWorkload(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The workload of a run without training; a run that trains has it from `training`.

    >>> Scenario(devices=[Device()], workload=TimingWorkload(samples=6400)).workload.batch_size
    32
    """

    batch_size: Count = 32
    """Samples of one mini-batch on one worker."""

    samples: Count = 100_000
    """Samples that the whole job processes."""

    dataset_samples: Count | None = None
    """Samples of one epoch; none: all of them."""


class Limits(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """When a run stops before its workload is done; never by default.

    >>> Scenario(devices=[Device()], limits=Limits(samples=640)).limits.stop_at_target
    False
    """

    time_s: Annotated[float, msgspec.Meta(gt=0)] = math.inf
    """Virtual time."""

    samples: Count | None = None
    """Samples; the workload is cut down to so many."""

    stop_at_target: bool = False
    """Stop at the first evaluation that reaches the target accuracy."""


class Scenario(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """A cluster and a job.

    Example:
        >>> scenario = Scenario(devices=[Device(count=2, compute_s=3.5), Device(count=4, compute_s=0.03)])
        >>> scenario.workers, scenario.mean_compute_s[1:3]
        (6, [3.5, 0.03])
    """

    name: str = "custom"
    """Name in tables and reports; of a file: its stem, unless given."""

    description: str = ""
    """One line."""

    source: str = ""
    """Where the figures are from."""

    devices: Annotated[list[Device], msgspec.Meta(min_length=1)]
    """The workers."""

    compute: Compute = Compute()
    """How the time of a mini-batch varies."""

    network: Network = Network()
    """What connects the workers."""

    switch_cost_s: Seconds = 0.0
    """Time for which everyone stands still when a policy switches from one policy to another."""

    epoch_end_s: Seconds | None = None
    """Time from the moment at which all workers have come to the end of an epoch until they begin the next one
    together, as real ones do; none: nobody waits there."""

    faults: Faults = Faults()
    """What goes wrong."""

    workload: TimingWorkload = TimingWorkload()
    """What is processed if nothing is trained."""

    limits: Limits = Limits()
    """When to stop early."""

    training: TrainingConfig | None = None
    """What is trained; none: only time is simulated."""

    def __post_init__(self) -> None:
        check_devices(self.devices)
        if self.workers > MOST_WORKERS:
            raise ScenarioError(
                f"devices: {self.workers} workers are more than the {MOST_WORKERS} that can be simulated; use fewer"
            )
        given: Any = self.faults
        if not isinstance(given, Faults):
            raise ScenarioError(
                f"faults must be Faults, as in Faults(leaves=[Leave(worker=0, time_s=9.0)]), but got {given!r}"
            )
        self.faults.check(self.workers)
        if self.epoch_end_s is not None and self.training is not None and self.training.partition != "shared":
            raise ScenarioError(
                f"epoch_end_s needs epochs that all share, but training.partition is {self.training.partition!r}; "
                "take one of them away"
            )

    @property
    def workers(self) -> int:
        """Number of workers."""
        return sum(device.count for device in self.devices)

    @property
    def mean_compute_s(self) -> list[float]:
        """Mean time of a mini-batch on each worker, seconds."""
        return [device.compute_s for device in self.devices for _ in range(device.count)]

    @property
    def bandwidths(self) -> list[float]:
        """Bandwidth of each worker's NIC, bytes/s."""
        return [device.bandwidth_gbps * BYTES_PER_GIGABIT for device in self.devices for _ in range(device.count)]

    @property
    def batch_size(self) -> int:
        """Samples that a worker draws for one mini-batch."""
        return self.training.own_batch(self.workers) if self.training else self.workload.batch_size


def check_devices(devices: Any) -> None:
    """A scenario that is made in Python is counted before it is checked as a file is."""
    if not isinstance(devices, list | tuple) or not devices or not all(isinstance(each, Device) for each in devices):
        raise ScenarioError(f"devices must be a list, as in [Device(count=4)], but got {devices!r}")
    for number, device in enumerate(devices):
        whole_number(f"devices.{number}.count", device.count, 1)
