"""What auto expects is what the simulator makes of the same steps."""

import random
from collections.abc import Sequence

import pytest

from polyrhythm.policies import parse_policy
from polyrhythm.policies._lib.dealing.step_time import StepTime
from polyrhythm.policies.auto.outlook import StepView, seconds
from polyrhythm.sim import Compute, Device, Network, Scenario, TimingWorkload, simulate

BATCH, ROUNDS, EXCHANGE_S = 32, 24, 0.3


def steps_of(workers: int, seed: int) -> list[list[float]]:
    draw = random.Random(seed)
    means = [draw.choice([1.0, 1.0, 2.5]) for _ in range(workers)]
    return [[mean * draw.uniform(0.8, 1.2) for _ in range(ROUNDS)] for mean in means]


def view_of(steps: Sequence[Sequence[float]]) -> StepView:
    times = []
    for each in steps:
        time = StepTime()
        for step_s in each:
            time = time.after(BATCH, step_s)
        times.append(time)
    return StepView(steps, times, BATCH, EXCHANGE_S, EXCHANGE_S)


def simulated_s(steps: list[list[float]], policy: str) -> float:
    """Seconds in which n * B samples count; the same steps come again and again, all workers' from the same place."""
    workers, repeats = len(steps), 40
    scenario = Scenario(
        devices=[Device(compute_s=sum(each) / ROUNDS) for each in steps],
        compute=Compute(distribution="measured", measured_s=steps, consecutive=ROUNDS),
        network=Network(averaging="ring", averaging_s=EXCHANGE_S, latency_s=EXCHANGE_S / 2),
        workload=TimingWorkload(batch_size=BATCH, samples=workers * BATCH * ROUNDS * repeats),
    )
    return simulate(scenario, policy).duration_s / (ROUNDS * repeats)


@pytest.mark.parametrize(
    ("policy", "off"),
    [("bsp", 0.01), ("balanced", 0.05), ("k-sync:3", 0.1), ("local:8", 0.03), ("asp", 0.03), ("ssp:2", 0.05)],
)
@pytest.mark.parametrize("seed", range(3))
def test_expectations_are_those_of_the_simulator(policy: str, off: float, seed: int) -> None:
    steps = steps_of(4, seed)
    expected = seconds(parse_policy(policy), view_of(steps))
    assert expected == pytest.approx(simulated_s(steps, policy), rel=off)
