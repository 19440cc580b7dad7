"""What one run came to: the same fields from the simulator and from real workers, under plain names with units."""

from typing import Literal

import msgspec

from polyrhythm.telemetry.stragglers import Lateness


class EvalPoint(msgspec.Struct, frozen=True):
    """The model's quality at one moment of the run, and that of one replica where replicas had not met before."""

    time_s: float
    samples: int
    updates: int
    accuracy: float
    loss: float
    replica_accuracy: float | None = None


class RunResult(msgspec.Struct, kw_only=True):
    """One policy, one seed. A figure that was not measured is None, never zero.

    Fractions are of the time that workers were live, so that compute + transfer + idle = 1. `updates` counts changes
    of the global parameters, `steps` mini-batches. Staleness is that of applied gradients. `samples` are those that
    workers drew themselves; by data injection they received `injected_samples` more, from source to receiver.
    `server_busy_s` is processor time of the process that decides and holds the parameters.
    Everything but `wall_s` is a function of the scenario, the policy and the seed when `where` is "simulated".

    >>> from polyrhythm import Device, Scenario, TimingWorkload, simulate
    >>> devices = [Device(compute_s=0.5), Device(compute_s=1.0)]
    >>> result = simulate(Scenario(devices=devices, workload=TimingWorkload(samples=640)), "bsp")
    >>> result.status, result.compute_fraction, result.idle_fraction
    ('ok', 0.75, 0.25)
    """

    scenario: str
    policy: str
    seed: int
    where: Literal["simulated", "local"] = "simulated"
    status: Literal["ok", "diverged", "failed"] = "ok"
    message: str = ""
    workers: int
    batch_size: int
    learning_rate: float | None = None
    lr_convention: str | None = None

    duration_s: float = 0.0
    samples: int = 0
    samples_per_s: float = 0.0
    steps: int = 0
    updates: int = 0
    switches: int = 0
    rolled_back_samples: int = 0

    target_accuracy: float | None = None
    time_to_target_s: float | None = None
    samples_to_target: int | None = None
    final_accuracy: float | None = None
    replica_accuracy: float | None = None
    final_loss: float | None = None
    best_accuracy: float | None = None

    lssr: float | None = None
    policy_figures: dict[str, float] = {}

    compute_fraction: float = 0.0
    transfer_fraction: float = 0.0
    idle_fraction: float = 0.0
    staleness_mean: float | None = None
    staleness_max: int | None = None
    staleness_counts: dict[int, int] = {}

    bytes_pushed: int = 0
    bytes_pulled: int = 0
    bytes_total: int = 0
    bytes_per_s: float = 0.0
    server_busy_s: float | None = None

    injected_samples: int = 0
    injected_bytes: int = 0
    injected_by_source: dict[int, dict[int, int]] = {}

    gradients_computed: int = 0
    gradients_applied: int = 0
    gradients_dropped: int = 0
    dropped_by_reason: dict[str, int] = {}

    steps_by_worker: dict[int, int] = {}
    compute_fraction_by_worker: dict[int, float] = {}
    idle_fraction_by_worker: dict[int, float] = {}
    arrivals: dict[int, Lateness] = {}
    curve: list[EvalPoint] = []
    trace_path: str | None = None
    wall_s: float = 0.0
