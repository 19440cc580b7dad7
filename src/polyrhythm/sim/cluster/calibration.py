"""What steps and exchanges cost on real workers, read off the traces of short runs, as a scenario to be simulated.

Three runs are read: one of local SGD, which says what a step costs by itself; one of BSP, from which the cost of an
all-reduce follows; one of ASP, from which that of a message follows. Both are what is left of a mean once the steps are
taken away, so that the simulated means are the measured ones; nothing else is fitted.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from statistics import fmean
from typing import NamedTuple

import msgspec
import numpy as np

from polyrhythm.core import Joined, Proceed, Report, Sync, Trace
from polyrhythm.errors import ScenarioError
from polyrhythm.sim.cluster.compute import Compute, streams
from polyrhythm.sim.cluster.links import Network, ring_s
from polyrhythm.sim.cluster.scenario import Device, Scenario

STEPS, ALL_REDUCE, MESSAGES = "local:8", "bsp", "asp"
"""Policies of the three runs."""

SHORTEST_S = 1e-6
"""A step that a busy host made look shorter, because the coordinator heard of its release late, is taken to be so
long.
"""

QUANTILES = 33
"""Numbers that a worker's durations are written down as."""

DRAWS = 4000
"""Rounds that are drawn to find out how long the slowest of all steps takes in the mean."""


class ObservedStep(NamedTuple):
    """One step as the policy saw it: from its release to its report, and the part that its worker waited."""

    worker: int
    cycle_s: float
    wait_s: float


class Costs(msgspec.Struct, frozen=True, kw_only=True):
    """What was measured; seconds and bytes.

    Args:
        compute_s: quantiles of the durations of each worker's steps, without exchange.
        latency_s: of a message between a worker and the server, beside its bytes.
        service_s: the server's processor time for a push; None where nobody has measured it, so that it is part of
            `latency_s`.
        averaging_s: of an all-reduce, beside its bytes.
        hidden_s: what of one of gradients passes while others are still computed.
        epoch_end_s: from the last report of an epoch to the first step of the next one.
        message_bytes: of the parameters.
        bandwidths: of each worker's link, bytes/s: as stated, or as its messages came to if they were faster.
    """

    compute_s: list[list[float]]
    latency_s: float
    service_s: float | None
    averaging_s: float
    hidden_s: float = 0.0
    epoch_end_s: float
    message_bytes: float
    bandwidths: list[float]


def whole_batch(trace: Trace) -> int:
    """Samples of the largest mini-batch; those of an epoch's last steps are smaller."""
    return max((event.samples for event, _ in trace.entries if isinstance(event, Report)), default=0)


def full_steps(trace: Trace) -> Iterator[ObservedStep]:
    """Steps on whole mini-batches, but for the first of each epoch, before which the workers stand still."""
    released: dict[int, float] = {}
    first: set[int] = set()
    size = whole_batch(trace)
    for event, decisions in trace.entries:
        if isinstance(event, Joined):
            first.update(event.workers)
        elif isinstance(event, Report):
            if event.samples == size and event.worker not in first:
                yield ObservedStep(event.worker, event.time_s - released[event.worker], event.wait_s)
            first.discard(event.worker)
        for decision in decisions:
            if isinstance(decision, Proceed):
                released.update(dict.fromkeys(decision.workers, event.time_s))


def rounds(trace: Trace) -> list[float]:
    """Seconds between two updates after whole mini-batches of one epoch."""
    times: list[float] = []
    size = whole_batch(trace)
    last_s, whole = None, True
    for event, decisions in trace.entries:
        if isinstance(event, Joined):
            last_s = None
        elif isinstance(event, Report):
            whole &= event.samples == size
        if any(isinstance(decision, Sync) for decision in decisions):
            if last_s is not None and whole:
                times.append(event.time_s - last_s)
            last_s, whole = event.time_s, True
    return times


def epoch_ends(trace: Trace) -> list[float]:
    """Seconds from the last report of each epoch to the next `Joined`."""
    gaps, last_s = [], 0.0
    for event, _ in trace.entries:
        if isinstance(event, Joined) and last_s:
            gaps.append(event.time_s - last_s)
        elif isinstance(event, Report):
            last_s = event.time_s
    return gaps


def by_worker(trace: Trace, workers: int) -> list[list[ObservedStep]]:
    """The whole steps of each worker."""
    steps: list[list[ObservedStep]] = [[] for _ in range(workers)]
    for step in full_steps(trace):
        steps[step.worker].append(step)
    if not all(steps):
        missing = next(worker for worker, made in enumerate(steps) if not made)
        raise ScenarioError(
            f"worker {missing} has made no whole step under {trace.header.policy} to measure; raise training.epochs"
        )
    return steps


def measure(
    traces: Mapping[str, Trace], bandwidths: list[float], message_bytes: float, server_busy_s: float | None
) -> Costs:
    """The costs.

    Args:
        traces: of the runs under `STEPS`, `ALL_REDUCE` and `MESSAGES`.
        bandwidths: of each worker's link as stated, bytes/s.
        message_bytes: of the parameters.
        server_busy_s: processor time of the server in the run under `MESSAGES`; None where nobody knows.
    """
    workers = len(bandwidths)
    alone = [
        [max(SHORTEST_S, step.cycle_s - step.wait_s) for step in steps] for steps in by_worker(traces[STEPS], workers)
    ]
    compute_s = [np.quantile(times, np.linspace(0, 1, QUANTILES)).tolist() for times in alone]
    reports = sum(isinstance(event, Report) for event, _ in traces[MESSAGES].entries)
    service_s = None if server_busy_s is None else server_busy_s / reports
    messages = extra_s(traces[MESSAGES], alone, service_s or 0.0)
    measured = [effective(message_bytes, both_s) for both_s in messages]
    bandwidths = [max(pair) for pair in zip(bandwidths, measured, strict=True)]
    rests = [both_s - 2 * message_bytes / rate for rate, both_s in zip(bandwidths, messages, strict=True)]
    round_s = fmean(rounds(traces[ALL_REDUCE]) or [0.0])
    extra = round_s - slowest_s(compute_s) - ring_s(workers, message_bytes, min(bandwidths))
    gaps = [gap for trace in traces.values() for gap in epoch_ends(trace)]
    return Costs(
        compute_s=compute_s,
        latency_s=max(0.0, fmean(rests) / 2),
        service_s=service_s,
        averaging_s=max(0.0, extra),
        hidden_s=max(0.0, -extra),
        epoch_end_s=fmean(gaps) if gaps else 0.0,
        message_bytes=message_bytes,
        bandwidths=bandwidths,
    )


def extra_s(trace: Trace, alone: list[list[float]], service_s: float) -> list[float]:
    """What each worker's steps under the trace's policy take longer than those without messages and their service."""
    cycles = [fmean(step.cycle_s for step in steps) for steps in by_worker(trace, len(alone))]
    return [cycle - fmean(times) - service_s for cycle, times in zip(cycles, alone, strict=True)]


def effective(size: float, both_s: float) -> float:
    """Bandwidth at which a message there and one back take so long; 0 if that is no time."""
    return 2 * size / both_s if both_s > 0 else 0.0


def slowest_s(compute_s: list[list[float]]) -> float:
    """Mean time of the slowest of one step of each worker."""
    drawn = streams(Compute(distribution="measured", measured_s=compute_s), [1.0] * len(compute_s), 0)
    return float(np.max([list(islice(stream, DRAWS)) for stream in drawn], axis=0).mean())


def calibrated(scenario: Scenario, costs: Costs) -> Scenario:
    """The scenario with measured costs in the place of stated ones; its faults, limits and training stay.

    Example:
        >>> costs = Costs(compute_s=[[0.1, 0.3]], latency_s=0.01, service_s=0.0, averaging_s=0.02, epoch_end_s=0.5,
        ...               message_bytes=4000.0, bandwidths=[125e6])
        >>> made = calibrated(Scenario(name="mine", devices=[Device()]), costs)
        >>> made.name, made.devices[0].compute_s, made.devices[0].bandwidth_gbps, made.network.averaging
        ('mine-calibrated', 0.2, 1.0, 'ring')
    """
    pairs = zip(costs.compute_s, costs.bandwidths, strict=True)
    network = Network(
        message_bytes=costs.message_bytes,
        latency_s=costs.latency_s,
        service_s=costs.service_s or 0.0,
        averaging="ring",
        averaging_s=costs.averaging_s,
        hidden_s=costs.hidden_s,
    )
    return msgspec.structs.replace(
        scenario,
        name=f"{scenario.name}-calibrated",
        source="durations, messages, averages and ends of epochs as measured on real workers by polyrhythm calibrate",
        devices=[Device(compute_s=fmean(times), bandwidth_gbps=rate * 8e-9) for times, rate in pairs],
        compute=Compute(distribution="measured", measured_s=costs.compute_s, cancelled="finishes"),
        network=network,
        epoch_end_s=costs.epoch_end_s,
    )
