"""How long one mini-batch computes: seeded streams of durations, one a worker.

A stream is a function of (seed, worker) alone, so nobody's durations depend on who else draws, or on the order of it.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from math import isinf, log, sqrt
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta

from polyrhythm.core import Report, Trace
from polyrhythm.errors import ScenarioError
from polyrhythm.sim.cluster.units import Count, Deviation, PositiveSeconds, Seconds, UnitShare

DrawSeconds: TypeAlias = Callable[[int], np.ndarray]
"""Draws so many durations in seconds."""

SHORTEST = 0.1
"""A normal duration is never below this share of its mean."""

PLACES_STREAM = 1_000_005
"""Sets the random stream of the places of measured runs apart from those of the workers."""

FIRST_BLOCK, LARGEST_BLOCK = 16, 512
"""Durations are drawn in blocks, which costs a hundredth of drawing them one by one."""


class Sleep(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """With probability p a worker sleeps in every step, for a normal time that is cut off at zero (RLP, section 4)."""

    probability: UnitShare
    """Probability p."""

    mean_s: Seconds
    """Mean sleep, in seconds."""

    mean_to_s: Seconds | None = None
    """If given, each sleeper's mean is drawn evenly between `mean_s` and this."""

    deviation: Deviation = 0.25
    """Standard deviation as a share of the mean."""

    per: Literal["run", "step"] = "run"
    """run: a worker is a sleeper for the whole run, or never. step: every step is drawn anew."""

    def __post_init__(self) -> None:
        if self.mean_to_s is not None and self.mean_to_s < self.mean_s:
            raise ScenarioError(
                f"compute.sleep.mean_to_s must be at least mean_s = {self.mean_s} but got {self.mean_to_s}"
            )


class Compute(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """How the duration of a mini-batch varies around the mean that its device states.

    A mini-batch of another size than `batch_size` takes proportionally longer or shorter.
    """

    distribution: Literal["constant", "normal", "log-normal", "trace", "measured"] = "constant"
    """constant, normal (cut off at a tenth of the mean), log-normal, trace: as recorded in a trace, or measured: as
    `measured_s` says."""

    deviation: Deviation = 0.0
    """Standard deviation as a share of the mean, for normal and log-normal."""

    trace: str | None = None
    """File of the trace whose step durations are replayed, worker by worker, from the start again at its end."""

    measured_s: list[Annotated[list[PositiveSeconds], Meta(min_length=1)]] | None = None
    """Measured times of a mini-batch in seconds, one list a worker: durations are drawn from the distribution that has
    these as evenly spaced quantiles. `polyrhythm calibrate` writes it."""

    consecutive: Count | None = None
    """If given, `measured_s` are times in the order in which they were measured, and so many consecutive ones are drawn
    at a time, of all workers from the same place: who is slow stays slow for as long as was measured."""

    sleep: Sleep | None = None
    """Random extra sleep; none: nobody sleeps."""

    cancelled: Literal["stops", "finishes"] = "stops"
    """What a worker does with a step that is cancelled while it computes: it stops at once, or it finishes, as real
    workers do, and only then begins the next one."""

    def __post_init__(self) -> None:
        if (self.distribution == "trace") != (self.trace is not None):
            raise ScenarioError(
                f"compute.trace goes with distribution = 'trace' but got trace {self.trace!r} "
                f"and distribution {self.distribution!r}; give both or neither"
            )
        if (self.distribution == "measured") != (self.measured_s is not None):
            raise ScenarioError(
                f"compute.measured_s goes with distribution = 'measured' but the distribution is "
                f"{self.distribution!r}; give both or neither"
            )
        if self.consecutive is not None and self.measured_s is None:
            raise ScenarioError(
                f"compute.consecutive goes with measured_s but got {self.consecutive} and none; give both or neither"
            )
        if self.distribution == "constant" and self.deviation:
            raise ScenarioError(
                f"compute.deviation must be 0 for distribution = 'constant' but got {self.deviation}; "
                "use normal or log-normal"
            )


def streams(config: Compute, means_s: list[float], seed: int) -> list[Iterator[float]]:
    """Durations of each worker's mini-batches in seconds, without end."""
    if config.trace is not None:
        return replayed(config.trace, len(means_s))
    if config.measured_s is not None and len(config.measured_s) != len(means_s):
        raise ScenarioError(
            f"compute.measured_s has {len(config.measured_s)} lists but the devices are {len(means_s)} workers; "
            "give one list a worker"
        )
    rngs = [np.random.default_rng(np.random.SeedSequence((seed, worker))) for worker in range(len(means_s))]
    if config.measured_s is not None and config.consecutive is not None:
        return in_runs(config, config.measured_s, config.consecutive, seed, rngs)
    measured: Sequence[list[float] | None] = config.measured_s or [None] * len(means_s)
    return [stream(config, *about) for about in zip(means_s, rngs, measured, strict=True)]


def in_runs(
    config: Compute, measured_s: list[list[float]], length: int, seed: int, rngs: list[np.random.Generator]
) -> list[Iterator[float]]:
    """Runs of consecutive durations; all workers begin them at the same places, so what slowed all down still does."""
    same = [np.random.default_rng(np.random.SeedSequence((seed, PLACES_STREAM))) for _ in rngs]
    draws = [runs(np.array(times_s), length, places) for times_s, places in zip(measured_s, same, strict=True)]
    return [
        blocks(sleeping(config.sleep, draw, rng) if config.sleep else draw)
        for draw, rng in zip(draws, rngs, strict=True)
    ]


def runs(times_s: np.ndarray, length: int, rng: np.random.Generator) -> DrawSeconds:
    def indices() -> Iterator[int]:
        while True:
            start = int(rng.integers(len(times_s)))
            yield from ((start + step) % len(times_s) for step in range(length))

    drawn = indices()
    return lambda size: times_s[np.fromiter(islice(drawn, size), int, size)]


def stream(
    config: Compute, mean_s: float, rng: np.random.Generator, measured_s: list[float] | None = None
) -> Iterator[float]:
    draw = base(config, mean_s, rng) if measured_s is None else quantiles(measured_s, rng)
    return blocks(sleeping(config.sleep, draw, rng) if config.sleep else draw)


def blocks(draw: DrawSeconds) -> Iterator[float]:
    size = FIRST_BLOCK
    while True:
        yield from draw(size).tolist()
        size = min(2 * size, LARGEST_BLOCK)


def base(config: Compute, mean_s: float, rng: np.random.Generator) -> DrawSeconds:
    if config.distribution == "normal":
        return lambda size: np.maximum(rng.normal(mean_s, config.deviation * mean_s, size), SHORTEST * mean_s)
    if config.distribution == "log-normal":
        variance = log(1 + config.deviation**2)
        return lambda size: rng.lognormal(log(mean_s) - variance / 2, sqrt(variance), size)
    return lambda size: np.full(size, mean_s)


def quantiles(times_s: list[float], rng: np.random.Generator) -> DrawSeconds:
    """Durations whose quantile function goes through these times, evenly spaced, with straight lines between them."""
    ordered = np.sort(times_s)
    shares = np.linspace(0.0, 1.0, len(ordered))
    return lambda size: np.interp(rng.random(size), shares, ordered)


def sleeping(sleep: Sleep, draw: DrawSeconds, rng: np.random.Generator) -> DrawSeconds:
    mean_s = rng.uniform(sleep.mean_s, sleep.mean_s if sleep.mean_to_s is None else sleep.mean_to_s)
    extra: DrawSeconds = lambda size: np.maximum(rng.normal(mean_s, sleep.deviation * mean_s, size), 0.0)  # noqa: E731
    if sleep.per == "step":
        return lambda size: draw(size) + extra(size) * (rng.random(size) < sleep.probability)
    if rng.random() < sleep.probability:
        return lambda size: draw(size) + extra(size)
    return draw


def replayed(path: str, workers: int) -> list[Iterator[float]]:
    recorded: dict[int, list[float]] = {worker: [] for worker in range(workers)}
    for event, _ in Trace.load(path).entries:
        if isinstance(event, Report) and event.worker in recorded:
            recorded[event.worker].append(event.step_s)
    for worker, durations in recorded.items():
        if not durations or isinf(sum(durations)) or min(durations) < 0:
            raise ScenarioError(
                f"compute.trace: {path!r} has no usable step of worker {worker}; "
                f"this scenario has {workers} workers and needs steps of each"
            )
    return [cycle(durations) for durations in recorded.values()]
