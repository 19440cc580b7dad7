"""What a coordinator is started with, and where it is found; known to those who start it, without torch."""

from typing import Literal, TypeAlias

import msgspec

from polyrhythm.training.config import StateTreatment
from polyrhythm.training.divergence import EXPLODED, OnDivergence

Averaging: TypeAlias = Literal["ring", "server"]
"""Where averages of replicas are summed up: on the way from worker to worker, or by the servers."""


class JobConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a coordinator is started with.

    Args:
        job: id of the job; names its socket on this host.
        token: secret of the job; required for workers on other hosts.
        policy: spec of the first policy.
        workers: how many workers must be ready before the first step.
        epochs: epochs that the job plans.
        lr_convention: "linear": the script's rate is that of an update from all planned workers, and an update that
            combines m of their n gradients moves m/n as far; "same": every update uses the script's rate.
        compensation: what is done about staleness.
        shards: parameter servers.
        listen: further addresses, such as ``tcp:10.0.0.1:29400``.
        rates: bytes/s that the coordinator sends at most over a connection made to one of those addresses; see
            `polyrhythm.runtime.wire.rate_limit`.
        averaging: where averages of replicas are summed up.
        averaged_state: what becomes of the optimizers' states when replicas are averaged, see
            `polyrhythm.training.config.TrainingConfig`.
        delta_rate: rate at which a mean delta is applied where the policy names no outer optimizer.
        full_duplex: whether workers on other hosts pull while they push, where the policy lets them.
        on_divergence: what becomes of a job whose loss is not finite or explodes, see
            `polyrhythm.training.divergence`; `divergence` is the factor of its `LossWatch`.
        compress: what gradients and replicas travel as, see `polyrhythm.training.compression`.
        heartbeat_s: period of the workers' heartbeats; `hang_s` without one is a hang.
        patience_s: how long to wait for the first worker.
        trace: folder for traces, one file for each phase.
        figures: file for what was measured (`polyrhythm.telemetry.Figures`), written as JSON at the job's end.
    """

    job: str
    token: str = ""
    policy: str = "bsp"
    workers: int = 1
    epochs: int = 1
    lr_convention: str = "linear"
    compensation: str = "none"
    shards: int = 1
    listen: tuple[str, ...] = ()
    full_duplex: bool = False
    rates: dict[str, float] = {}
    compress: str = "none"
    averaging: Averaging = "ring"
    averaged_state: StateTreatment = "keep"
    delta_rate: float = 1.0
    on_divergence: OnDivergence = "ignore"
    divergence: float = EXPLODED
    heartbeat_s: float = 0.5
    hang_s: float = 10.0
    patience_s: float = 120.0
    trace: str | None = None
    figures: str | None = None


def coordinator_address(job: str) -> str:
    """The address of a job's coordinator on its own host."""
    return f"unix:@polyrhythm-{job}"
