"""Partitions, data injection and compression in the simulator."""

from typing import Any

import pytest

from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Faults, Leave, Network, Scenario, simulate
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig

POLICIES = ["asp", "local:3"]
DEFAULTS: dict[str, Any] = {
    "train_samples": 400,
    "samples": 800,
    "batch_size": 16,
    "learning_rate": 0.02,
    "eval_every_samples": 800,
}
LEARNERS = [("fp16", "esync"), ("int8", "selsync:0.2"), ("topk:0.1", "asp"), ("topk:0.1", "diloco:3")]


def run(policy: str = "bsp", workers: int = 4, faults: Faults | None = None, **training: Any) -> RunResult:
    config = TrainingConfig(**(DEFAULTS | training))
    scenario = Scenario(
        devices=[Device(count=workers, compute_s=1.0)],
        network=Network(message_bytes=1000.0, server_gbps=1e-3),
        training=config,
        faults=faults or Faults(),
    )
    return simulate(scenario, parse_policy(policy), seed=1)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("partition", ["seldp", "labels:3", "sizes:5,1,1,1"])
def test_each_worker_reads_its_shard_until_the_job_has_its_samples(policy: str, partition: str) -> None:
    result = run(policy, partition=partition)
    assert result.samples == 800
    assert result.gradients_dropped == 0


@pytest.mark.parametrize("policy", POLICIES)
def test_nothing_is_lost_with_a_worker_and_its_shard_is_read_on(policy: str) -> None:
    leaves = [Leave(worker=1, time_s=3.5, back_after_s=2.0), Leave(worker=2, time_s=4.5)]
    result = run(policy, faults=Faults(leaves=leaves), partition="defdp")
    assert result.samples == 800
    assert result.steps_by_worker[2] < result.steps_by_worker[0]


def test_a_partition_changes_what_a_model_learns_but_not_the_time() -> None:
    shared, skewed = run("local:10"), run("local:10", partition="sorted")
    assert shared.final_loss != skewed.final_loss
    assert skewed.steps == 4 * 14  # 100 samples are 6 mini-batches of 16 and one of 4, twice on each worker


@pytest.mark.parametrize("policy", POLICIES)
def test_injected_samples_are_counted_from_source_to_receiver(policy: str) -> None:
    result = run(policy, injection=(0.5, 0.5))
    own = 8  # 16 / (1 + 0.5 * 0.5 * 4)
    assert result.batch_size == own
    assert result.samples == 800
    assert result.injected_samples == sum(sum(row.values()) for row in result.injected_by_source.values())
    assert result.injected_bytes == result.injected_samples * (64 * 4 + 8)
    assert all(source not in row for source, row in result.injected_by_source.items())
    # In every step two sharers each send 4 of 8 samples to the three others.
    assert result.injected_samples == pytest.approx(result.steps / 4 * 2 * 3 * 4, rel=0.15)


def test_injection_costs_its_bytes_on_the_workers_links() -> None:
    base = run(injection=(0.5, 0.5))
    config: dict[str, Any] = {"train_samples": 400, "samples": 160, "batch_size": 16}
    thin = Scenario(
        devices=[Device(count=4, compute_s=1.0, bandwidth_gbps=8e-6)],
        network=Network(message_bytes=1000.0, server_gbps=1e-3),
        training=TrainingConfig(**config, injection=(0.5, 0.5)),
    )
    slow = simulate(thin, parse_policy("bsp"), seed=1)
    steps = slow.steps / 4
    sent_s = 3 * 4 * 264 / 1000  # three receivers, four samples of 264 bytes, 1000 bytes/s
    messages_s = 2 * 1000 / 1000  # one pull and one push a step now go at the NIC's pace
    assert slow.duration_s / steps == pytest.approx(1.0 + sent_s + messages_s, rel=0.02)
    assert base.duration_s / (base.steps / 4) < slow.duration_s / steps


@pytest.mark.parametrize(("compression", "policy"), LEARNERS)
def test_policies_learn_with_compression_and_send_fewer_bytes(compression: str, policy: str) -> None:
    plain, compressed = run(policy), run(policy, compression=compression)
    assert compressed.samples == plain.samples
    assert compressed.final_loss is not None
    assert plain.final_loss is not None
    assert compressed.final_loss != plain.final_loss
    assert compressed.final_loss < 2.1  # ln 10 is 2.3
    per_update = compressed.bytes_pushed / compressed.updates, plain.bytes_pushed / plain.updates
    assert per_update[0] < 0.6 * per_update[1]


@pytest.mark.parametrize("policy", POLICIES)
def test_no_compression_is_exact(policy: str) -> None:
    assert run(policy).curve == run(policy, compression="none").curve


def test_bytes_are_those_of_the_payloads() -> None:
    plain, halves = run("asp"), run("asp", compression="fp16")
    assert (halves.bytes_pushed, halves.bytes_pulled) == (plain.bytes_pushed // 2, plain.bytes_pulled // 2)
    sparse = run("asp", compression="topk:0.05")
    assert (sparse.bytes_pushed, sparse.bytes_pulled) == (plain.bytes_pushed // 10, plain.bytes_pulled)


def test_a_ring_hands_compressed_vectors_round() -> None:
    def ring(**training: Any) -> RunResult:
        network = Network(message_bytes=1000.0, averaging="ring")
        devices = [Device(count=4, compute_s=1.0, bandwidth_gbps=8e-6)]
        config = TrainingConfig(train_samples=400, samples=400, batch_size=25, **training)
        return simulate(Scenario(devices=devices, network=network, training=config), parse_policy("bsp"))

    plain, halves = ring(), ring(compression="fp16")
    assert plain.duration_s == pytest.approx(4 * (1 + 2 * 3 / 4))
    assert halves.duration_s == pytest.approx(4 * (1 + 3 / 2))
    assert halves.bytes_total == 4 * 4 * 3 * 500
