"""What auto promises: at no sample of the job is it behind BSP by more than the risk and a stated constant."""

import random
from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

import pytest

from polyrhythm.core import Decisions, Event, Report, Sync
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Faults, Network, Scenario, Straggler, TimingWorkload
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.job import build_job
from polyrhythm.sim.numerics import TimingOnly
from polyrhythm.telemetry import Meter
from tests.policies.auto.test_saved_time import ROUNDS as SERVED_ROUNDS
from tests.policies.auto.test_saved_time import served

RISK, ROUNDS, BATCH = 0.02, 90, 16
CONSTANT = 0.6
"""Rounds of BSP, beside the time of one switch: half a round that is risked at first, and chance in a step."""


class Progress:
    """When how many samples were in the parameters, in the place of a trace."""

    def __init__(self) -> None:
        self.times, self.samples, self._pending = [0.0], [0], 0

    def write(self, event: Event, decisions: Decisions) -> None:
        self._pending += event.samples if isinstance(event, Report) else 0
        if any(isinstance(decision, Sync) for decision in decisions):
            self.times.append(event.time_s)
            self.samples.append(self.samples[-1] + self._pending)
            self._pending = 0

    def remark(self, text: str) -> None:
        """Not looked at."""

    def at(self, samples: int) -> float:
        """When so many were there, between two rounds in proportion."""
        after = min(bisect_left(self.samples, samples), len(self.samples) - 1)
        before = after - 1
        share = (samples - self.samples[before]) / (self.samples[after] - self.samples[before])
        return self.times[before] + share * (self.times[after] - self.times[before])


def progress(scenario: Scenario, policy: str) -> Progress:
    found: Any = Progress()
    Engine(build_job(scenario, parse_policy(policy), TimingOnly(), 0), Meter(None), found).run()
    return found  # type: ignore[no-any-return]


def cluster(number: int) -> Scenario:
    """Speeds, stragglers that stay, go and take turns, chance and links from a seed."""
    draw = random.Random(f"promise {number}")
    workers = draw.randint(2, 9)
    speeds = [draw.choice([1.0, 1.0, draw.uniform(1.0, 4.0)]) for _ in range(workers)]
    length, slowdown = draw.randint(3, 25), draw.uniform(1.5, 4.0)
    kind = draw.choice(["none", "turns", "stays", "goes"])
    slow = {
        "none": [],
        "turns": [
            Straggler(workers=[turn % workers], start_step=turn * length, steps=length, slowdown=slowdown)
            for turn in range(ROUNDS // length)
        ],
        "stays": [Straggler(workers=[draw.randrange(workers)], start_step=draw.randint(3, 60), slowdown=slowdown)],
        "goes": [
            Straggler(workers=[draw.randrange(workers)], start_step=start, steps=length, slowdown=slowdown)
            for start in draw.sample(range(ROUNDS), 3)
        ],
    }
    exchange_s = draw.choice([0.0, 0.1, draw.uniform(0.5, 3.0)])
    return Scenario(
        devices=[Device(compute_s=speed) for speed in speeds],
        compute=Compute(distribution="normal", deviation=draw.uniform(0.0, 0.15)),
        network=Network(averaging="ring", averaging_s=exchange_s, latency_s=exchange_s / 2),
        faults=Faults(stragglers=slow[kind]),
        switch_cost_s=draw.choice([0.0, 0.5]),
        workload=TimingWorkload(batch_size=BATCH, samples=ROUNDS * BATCH * workers, dataset_samples=1000),
    )


@pytest.mark.parametrize("number", range(40))
def test_no_sample_comes_later_than_promised(number: int) -> None:
    scenario = cluster(number)
    ours, bsp = progress(scenario, "auto"), progress(scenario, "bsp")
    round_s = bsp.times[-1] / ROUNDS
    for time_s, samples in zip(ours.times[1:], ours.samples[1:], strict=True):
        assert time_s <= (1 + RISK) * bsp.at(samples) + scenario.switch_cost_s + CONSTANT * round_s


@pytest.mark.parametrize(
    ("speeds", "message_s"), [((1.0, 2.0), 1.0), ((1.0, 1.5), 0.5), ((1.0, 1.0, 1.0, 2.0), 0.33), ((1.0, 5.0), 1.0)]
)
def test_nor_where_messages_that_come_together_are_slow(speeds: Sequence[float], message_s: float) -> None:
    """Under equal shares the faster workers send while the slower ones compute."""
    scenario = served(speeds, message_s)
    ours, bsp = progress(scenario, "auto"), progress(scenario, "bsp")
    round_s = bsp.times[-1] / SERVED_ROUNDS
    for time_s, samples in zip(ours.times[1:], ours.samples[1:], strict=True):
        assert time_s <= (1 + RISK) * bsp.at(samples) + CONSTANT * round_s


def test_it_is_worth_it() -> None:
    """The promise is not kept by doing nothing."""
    gains = [
        progress(scenario, "bsp").times[-1] / progress(scenario, "auto").times[-1]
        for scenario in map(cluster, range(12))
    ]
    assert max(gains) > 1.5
    assert min(gains) > 0.98
