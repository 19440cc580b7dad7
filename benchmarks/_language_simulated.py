"""The runs of `language_model.py` in the simulator: steps and bytes, from three short calibration runs."""

from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
from _language_runs import HOSTS, WORKERS, Run, Way

from polyrhythm import Device, Scenario, TimingWorkload, simulate
from polyrhythm.core import Report, Sync, Trace
from polyrhythm.sim import Network
from polyrhythm.sim.cluster.calibration import QUANTILES, slowest_s
from polyrhythm.sim.cluster.compute import Compute
from polyrhythm.sim.cluster.links import ring_s

PAYLOAD = 1448 / 1514
"""Of an Ethernet frame, what is not its own header, IP's or TCP's."""

LONG_RUN = 4000
"""Steps after which SelSync's threshold has settled."""


class Costs(NamedTuple):
    """What the calibration runs say.

    Args:
        compute_s: quantiles of each worker's steps.
        averaging_s: of an all-reduce, beside its bytes.
        hidden_s: what of one of gradients passes while others are computed.
    """

    compute_s: list[list[float]]
    averaging_s: float
    hidden_s: float


def costs_of(alone: Run, averaging: Run, gradients: Run, every: int, skipped: int) -> Costs:
    """Costs from a run without exchanges, one of local SGD with this period, and one of BSP.

    Steps up to the mark at `skipped` are left out.
    """
    compute_s = [np.quantile(times[skipped:], np.linspace(0, 1, QUANTILES)).tolist() for times in alone.step_s]
    slowest, bytes_s = slowest_s(compute_s), sum_s(alone.parameters, averaging.rate_mbit)
    last = skipped + (averaging.marks[-1].step - skipped) // every * every
    step_s, _ = averaging.between(skipped, last)
    averaging_s = (step_s - round_s(compute_s, every) / every) * every - bytes_s
    step_s, _ = gradients.between(skipped, gradients.marks[-1].step)
    return Costs(compute_s, max(0.0, averaging_s), max(0.0, slowest + bytes_s + averaging_s - step_s))


def round_s(compute_s: list[list[float]], steps: int) -> float:
    """Mean time of the slowest of so many steps of each worker."""
    random = np.random.default_rng(0)
    shares = np.linspace(0, 1, QUANTILES)
    rounds = [np.interp(random.random((1000, steps)), shares, times).sum(1) for times in compute_s]
    return float(np.max(rounds, axis=0).mean())


def sum_s(parameters: int, rate_mbit: float) -> float:
    """Seconds in which a sum of the model crosses the hosts' links."""
    return ring_s(HOSTS, 4.0 * parameters, rate_mbit * 1e6 / 8 * PAYLOAD)


def scenario_of(way: Way, run: Run, costs: Costs, batch_size: int, steps: int) -> Scenario:
    """The hosts, links and steps of a run; under torchrun gloo's ring goes among the workers."""
    devices = [
        Device(compute_s=fmean(times), bandwidth_gbps=run.rate_mbit / 1e3 * PAYLOAD) for times in costs.compute_s
    ]
    network = Network(
        message_bytes=(2.0 if "--bf16" in way.flags else 4.0) * run.parameters,
        averaging="ring",
        averaging_s=costs.averaging_s,
        hidden_s=costs.hidden_s,
        hosts=None if way.policy is None else HOSTS,
    )
    return Scenario(
        devices=devices,
        compute=Compute(distribution="measured", measured_s=costs.compute_s),
        network=network,
        workload=TimingWorkload(batch_size=batch_size, samples=batch_size * WORKERS * steps),
    )


def simulated(way: Way, run: Run, costs: Costs, batch_size: int, first: int, last: int) -> tuple[float, float]:
    """Seconds and bytes of a host in a step, between the same two steps of the first worker as in the run.

    The script's first step belongs to no policy. Which of SelSync's steps an exchange follows depends on gradients, of
    which there are none: the simulator is told their share in the run, and its mean step after a long time is taken.
    """
    policy, first, last = way.policy or "bsp", first - 1, last - 1
    if policy.startswith("selsync"):
        share = min(0.99, max(0.01, run.between(first + 1, last + 1)[1] / (4.0 * run.parameters)))
        policy, first, last = f"selsync:lssr={1 - share:.4f}", LONG_RUN // 2, LONG_RUN
    # With a quorum others may make some of the first worker's steps.
    steps = 2 * max(run.steps - 1, last + 1)
    with TemporaryDirectory() as folder:
        path = Path(folder) / "trace.jsonl"
        result = simulate(scenario_of(way, run, costs, batch_size, steps), policy, trace=path)
        trace = Trace.load(path)
    times = [event.time_s for event, _ in trace.entries if isinstance(event, Report) and event.worker == 0]
    start_s, end_s = times[first - 1], times[last - 1]
    syncs = [event.time_s for event, made in trace.entries if any(isinstance(one, Sync) for one in made)]
    within = sum(start_s <= time_s < end_s for time_s in syncs)
    one = result.bytes_total / len(syncs) / (WORKERS if way.policy is None else HOSTS) if syncs else 0.0
    return (end_s - start_s) / (last - first), within * one / (last - first)
