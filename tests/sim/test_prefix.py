"""A run that goes on from a kept moment of another is the run."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Scenario, TimingWorkload, load_scenario, simulate
from polyrhythm.sim.cluster.faults import Faults, Leave, Straggler
from polyrhythm.sim.cluster.links import Network
from polyrhythm.sim.prefix import Prefix
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig

POLICIES = ("switch:bsp@0.5,asp", "switch:bsp@0.2,(ssp:2)", "bsp", "asp", "switch:asp@0.5,bsp", "local:4")
DEVICES = [Device(count=3, compute_s=0.1, bandwidth_gbps=1.0), Device(compute_s=0.15, bandwidth_gbps=1.0)]
NETWORK = Network(message_bytes=1e5, server_gbps=0.5, latency_s=0.001)


def plain(result: RunResult) -> dict[str, Any]:
    values: dict[str, Any] = msgspec.to_builtins(result, str_keys=True)
    del values["wall_s"]
    return values


def check(scenario: Scenario, led_by: str, policy: str, seed: int = 3) -> float:
    """The branch is the run, twice; the time that it did not take again."""
    prefix = Prefix(scenario, parse_policy(led_by), seed)
    for share in (0.1, 0.2, 0.35, 0.5):
        prefix.advance(share)
    expected = plain(simulate(scenario, parse_policy(policy), seed=seed))
    for _ in range(2):
        result, reused_s = prefix.branch(parse_policy(policy))
        assert plain(result) == expected
    assert plain(prefix.finish()) == plain(simulate(scenario, parse_policy(led_by), seed=seed))
    return reused_s / float(expected["duration_s"])


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("led_by", ["switch:bsp@1,asp", "asp"])
def test_in_time(led_by: str, policy: str) -> None:
    faults = Faults(
        stragglers=[Straggler(workers=[1], start_s=0.4, duration_s=3.0, slowdown=3.0)],
        leaves=[Leave(worker=2, time_s=2.0, back_after_s=1.0)],
    )
    workload = TimingWorkload(batch_size=8, samples=2400)
    scenario = Scenario(devices=DEVICES, network=NETWORK, faults=faults, workload=workload)
    assert check(scenario, led_by, policy) >= 0


@pytest.fixture
def two_threads() -> Iterator[None]:
    """As without OMP_NUM_THREADS; sums of several threads have other last digits."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("policy", ["switch:bsp@0.3,asp", "local:4"])
def test_with_gradients(policy: str) -> None:
    training = TrainingConfig(task="digits", epochs=1, batch_size=16, learning_rate=0.05, momentum=0.9)
    scenario = load_scenario("stragglers-moderate")
    scenario = msgspec.structs.replace(scenario, training=training)
    assert check(scenario, "switch:bsp@1,asp", policy) >= 0


def test_the_common_time_is_not_taken_again() -> None:
    scenario = Scenario(devices=DEVICES, workload=TimingWorkload(batch_size=8, samples=6400))
    shares = [check(scenario, "switch:bsp@1,asp", f"switch:bsp@{at},asp") for at in (0.2, 0.5)]
    assert 0.15 < shares[0] < shares[1]
    assert shares[1] > 0.5
    assert check(scenario, "switch:bsp@1,asp", "asp") == 0.0
    ring = msgspec.structs.replace(scenario, network=Network(message_bytes=1e5, averaging="ring"))
    assert check(ring, "switch:bsp@1,asp", "switch:bsp@0.5,asp") == 0.0  # one may go round the ring, the other not


def test_a_run_that_diverges_says_so_from_either_side() -> None:
    training = TrainingConfig(task="digits", epochs=1, batch_size=16, learning_rate=1e30)
    scenario = Scenario(devices=[Device(count=2)], training=training)
    check(scenario, "switch:bsp@1,asp", "switch:bsp@0.5,asp")


def test_a_run_that_stops_at_its_target_is_not_resumed() -> None:
    training = TrainingConfig(task="digits", epochs=1, batch_size=16, learning_rate=0.1, target_accuracy=0.05)
    limits = msgspec.convert({"stop_at_target": True}, type(Scenario(devices=DEVICES).limits))
    scenario = Scenario(devices=DEVICES, training=training, limits=limits)
    check(scenario, "switch:bsp@1,asp", "switch:bsp@0.5,asp")
