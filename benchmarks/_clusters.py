"""Random clusters from a seed: speeds, stragglers, links, sizes and learning rates from safe to the edge."""

import random
from collections.abc import Callable

from polyrhythm.sim import Compute, Device, Faults, Limits, Network, Scenario, Straggler
from polyrhythm.training.config import TrainingConfig

SIZES = (2, 3, 4, 4, 6, 8, 8, 12, 16, 24, 32, 64)
EDGE = 1.0
"""n times the rate at which BSP on digits is about to diverge."""


def speeds(draw: random.Random, workers: int) -> list[float]:
    """Seconds of a mini-batch: all equal, one slow, two generations, or all different."""
    kind = draw.choice(["equal", "equal", "one", "generations", "different"])
    if kind == "one":
        return [draw.uniform(1.5, 6.0), *[1.0] * (workers - 1)]
    if kind == "generations":
        slow, factor = draw.randint(1, workers - 1), draw.uniform(1.3, 4.0)
        return [factor] * slow + [1.0] * (workers - slow)
    return [draw.uniform(1.0, 3.0) if kind == "different" else 1.0 for _ in range(workers)]


def stragglers(draw: random.Random, workers: int) -> list[Straggler]:
    """None, one that comes and stays, some that come and go, or one after the other in turn."""
    kind, factor = draw.choice(["none", "none", "stays", "goes", "turns"]), draw.uniform(2.0, 6.0)
    if kind == "stays":
        return [Straggler(workers=[draw.randrange(workers)], start_step=draw.randint(5, 150), slowdown=factor)]
    if kind == "goes":
        starts = [draw.randint(0, 300) for _ in range(draw.randint(1, 5))]
        return [
            Straggler(workers=[draw.randrange(workers)], start_step=start, steps=draw.randint(10, 80), slowdown=factor)
            for start in starts
        ]
    length = draw.randint(2, 30)
    return [
        Straggler(workers=[turn % workers], start_step=turn * length, steps=length, slowdown=factor)
        for turn in range(600 // length if kind == "turns" else 0)
    ]


def compute(draw: random.Random) -> Compute:
    if draw.random() < 0.25:
        return Compute(distribution="log-normal", deviation=draw.uniform(0.2, 0.7))
    return Compute(distribution="normal", deviation=draw.uniform(0.0, 0.15))


def network(draw: random.Random) -> Network:
    """Fast, middling or thin: an exchange takes up to eight times as long as a mini-batch."""
    exchange_s = draw.choice([0.0, 0.02, draw.uniform(0.05, 0.5), draw.uniform(1.0, 8.0)])
    return Network(averaging="ring", averaging_s=exchange_s, latency_s=exchange_s / 2)


def one(number: int) -> Scenario:
    """A cluster of the first generator."""
    draw = random.Random(f"auto {number}")
    workers = draw.choice(SIZES)
    batch = draw.choice([4, 8, 16]) if workers > 16 else draw.choice([8, 16, 32])
    rate = EDGE * 10 ** draw.uniform(-1.8, 0.0)
    return scenario(draw, f"a{number}", workers, batch, rate, network(draw))


def other(number: int) -> Scenario:
    """A cluster of another generator: servers in the middle, rates in steps, sizes at random."""
    draw = random.Random(f"other {number}")
    workers = draw.randint(2, 40)
    batch = draw.choice([4, 12, 24])
    rate = draw.choice([0.02, 0.05, 0.15, 0.4, 0.8])
    gbps = draw.choice([100.0, 2.0, 0.5])
    links = Network(message_bytes=2e7, server_gbps=gbps * workers / 4, latency_s=0.01)
    return scenario(draw, f"b{number}", workers, batch, rate, draw.choice([links, network(draw)]))


def scenario(draw: random.Random, name: str, workers: int, batch: int, rate: float, links: Network) -> Scenario:
    """A job that BSP brings to the target well before it ends."""
    rounds = min(900, round(40 / rate) + 120)
    training = TrainingConfig(
        batch_size=batch,
        learning_rate=rate / workers,
        epochs=max(1, -(-rounds * workers * batch // 1437)),
        target_accuracy=0.92,
        eval_every_samples=workers * batch,
    )
    return Scenario(
        name=name,
        devices=[Device(compute_s=seconds) for seconds in speeds(draw, workers)],
        compute=compute(draw),
        network=links,
        faults=Faults(stragglers=stragglers(draw, workers)),
        switch_cost_s=draw.choice([0.0, 0.2, 1.0]),
        training=training,
        limits=Limits(stop_at_target=True),
    )


GENERATORS: dict[str, Callable[[int], Scenario]] = {"one": one, "other": other}
