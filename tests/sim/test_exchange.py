"""What exchanges among replicas cost: parts of the workers, parts of the parameters, and results that come later."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from polyrhythm.core import Decisions, Proceed, Report, Stopped, Sync
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Faults, Leave, Network, Scenario, TimingWorkload, load_scenario, simulate
from polyrhythm.sim.engine import Engine
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig
from tests.sim.clusters import Recorder, Scripted, engine_of

BYTE = 8e-9
"""One byte a second, in gigabits."""


def cluster(*compute_s: float, samples: int, message: float = 4.0, latency_s: float = 0.0, **fields: Any) -> Scenario:
    """Workers with NICs of 1 byte/s around a server whose NIC carries all of them at once."""
    return Scenario(
        devices=[Device(compute_s=mean, bandwidth_gbps=BYTE) for mean in compute_s],
        network=Network(message_bytes=message, latency_s=latency_s, **fields),
        workload=TimingWorkload(batch_size=1, samples=samples),
    )


def run(scenario: Scenario, spec: str) -> RunResult:
    return simulate(scenario, parse_policy(spec))


def test_an_average_is_a_push_and_a_pull() -> None:
    result = run(cluster(1.0, 1.0, samples=8), "local:2")
    assert result.duration_s == 2 * (2 + 4 + 4)
    assert (result.bytes_pushed, result.bytes_pulled, result.bytes_per_s, result.lssr) == (16, 16, 1.6, 0.5)


def test_only_contributors_push_and_all_adopters_pull() -> None:
    result = run(cluster(1.0, 1.0, 1.0, 1.0, samples=32), "fedavg:c=0.5,e=0.25")
    assert result.duration_s == 4 * (2 + 4 + 4)
    assert (result.bytes_pushed, result.bytes_pulled) == (4 * 2 * 4, 4 * 4 * 4)
    assert result.dropped_by_reason == {"replaced": 16}
    assert result.samples == 32


def test_who_contributes_and_does_not_adopt_goes_on_after_its_push() -> None:
    sync = Sync((0, 1), "parameters", adopters=(1,))
    both = Proceed((0, 1), "replicas")
    script: Sequence[Decisions] = [(both,), (), (sync, both), (), (both,), (), ()]
    engine = engine_of(cluster(1.0, 1.0, samples=4), Scripted(script))
    engine.run()
    assert {worker: a.transfer_s for worker, a in engine.meter.activities.items()} == {0: 4.0, 1: 8.0}


@pytest.mark.parametrize("averaging", ["server", "ring"])
def test_a_fragment_is_a_part_of_the_message(averaging: Any) -> None:
    whole = run(cluster(1.0, 1.0, samples=16, averaging=averaging), "diloco:4")
    parts = run(cluster(1.0, 1.0, samples=16, averaging=averaging), "diloco:4,fragments=4")
    assert parts.bytes_total == whole.bytes_total
    assert parts.duration_s == whole.duration_s
    assert (parts.updates, whole.updates) == (8, 2)


@pytest.mark.parametrize("averaging", ["server", "ring"])
def test_a_delayed_exchange_hides_behind_the_steps_that_follow(averaging: Any) -> None:
    """4 bytes there and back, or once round a ring of two, beside steps of 2 s."""
    exchange_s = {"server": 8.0, "ring": 4.0}[averaging]
    for overlap in range(4):
        result = run(cluster(2.0, 2.0, samples=24, averaging=averaging), f"diloco:4,overlap={overlap}")
        # Three rounds of four steps; after the last one the job is over, and only an exchange at once is waited for.
        late_s = max(0.0, exchange_s - 2.0 * overlap)
        assert result.duration_s == 12 * 2.0 + 2 * late_s + (exchange_s if overlap == 0 else 0.0), overlap
        assert result.transfer_fraction == (pytest.approx(3 * exchange_s / result.duration_s) if overlap == 0 else 0.0)


def test_a_worker_that_dies_is_not_awaited_in_a_delayed_exchange() -> None:
    scenario = cluster(2.0, 2.0, samples=40)
    faults = Faults(leaves=[Leave(worker=1, time_s=9.0)])
    result = run(msgspec.structs.replace(scenario, faults=faults), "diloco:4,overlap=3")
    assert result.samples == 40
    assert result.status == "ok"


def test_an_arbiter_takes_a_message_to_hear_and_one_to_answer() -> None:
    """A step of 1 s, half a second there and back; then half a second for the order, the push and the pull each."""
    log: list[Any] = []
    engine = engine_of(cluster(1.0, samples=3, latency_s=0.5), Recorder(parse_policy("esync"), log))
    engine.run()
    reports = [event for event, _ in log if isinstance(event, Report)]
    assert [report.time_s for report in reports][:2] == [2.0, 2.0 + 0.5 + 4.5 + 4.5 + 1.5]
    assert [report.transfer_s for report in reports][:2] == [1.0, 0.5 + 4.5 + 4.5 + 0.5]


def test_who_does_not_wait_computes_while_its_query_travels() -> None:
    blocking = run(cluster(8.0, 1.0, samples=60, message=0, latency_s=0.25), "esync")
    free = run(cluster(8.0, 1.0, samples=60, message=0, latency_s=0.25), "esync:blocking=false")
    assert free.samples_per_s > 1.2 * blocking.samples_per_s
    assert sum((free.compute_fraction, free.transfer_fraction, free.idle_fraction)) == pytest.approx(1)


def test_who_does_not_wait_goes_any_number_of_steps_ahead_of_the_word() -> None:
    """Steps of 1 s, an answer after 7 s, the slow one's step of 16 s."""
    engine, log = free_run(latency_s=3.5)
    told = [event.time_s for event, _ in log if isinstance(event, Report) and event.worker == 1]
    assert told[:16] == [step + 3.5 for step in range(1, 17)]
    assert engine.meter.samples == 90


def test_a_ready_that_comes_in_the_middle_of_a_step_abandons_it_and_the_steps_before_count() -> None:
    """The slow one's report comes after 16 + 3.6 s, the word after 23.2 s: the 23 steps that the fast one has made by
    then all count, and its next one is abandoned after 0.2 s, the slow one's after 7.2 s.
    """
    engine, log = free_run(latency_s=3.6)
    first = next(at for at, (_, decisions) in enumerate(log) if any(isinstance(d, Sync) for d in decisions))
    before = [event.worker for event, _ in log[: first + 1] if isinstance(event, Report)]
    assert (before.count(0), before.count(1)) == (1, 23)
    stops = [event for event, _ in log[: first + 1] if isinstance(event, Stopped)]
    assert sorted(event.worker for event in stops) == [0, 1]
    assert [event.time_s for event in stops] == pytest.approx([26.8, 26.8])
    assert engine.ledger.dropped["cancelled"] >= 2
    assert engine.meter.samples == 90


def free_run(latency_s: float) -> tuple[Engine, list[Any]]:
    log: list[Any] = []
    scenario = cluster(16.0, 1.0, samples=90, message=0, latency_s=latency_s)
    engine = engine_of(scenario, Recorder(parse_policy("esync:blocking=false"), log))
    engine.run()
    return engine, log


@pytest.mark.parametrize("time_s", [5.2, 17.0, 24.0, 27.5])
@pytest.mark.parametrize("worker", [0, 1])
def test_a_death_in_the_middle_loses_no_sample(worker: int, time_s: float) -> None:
    """While it computes ahead, while its reports travel, while the word does, and during the exchange."""
    scenario = cluster(16.0, 1.0, 1.3, samples=200, message=0.5, latency_s=3.5)
    faults = Faults(leaves=[Leave(worker=worker, time_s=time_s, back_after_s=4.0)])
    result = run(msgspec.structs.replace(scenario, faults=faults), "esync:blocking=false")
    assert result.samples == 200
    assert result.status == "ok"


def test_the_latency_hardly_costs_who_does_not_wait_for_answers() -> None:
    """The paper's devices, 3.5 s and 30 ms a step: a blocking query of 100 ms each way leaves an eighth."""
    speeds = {spec: [paper(spec, latency_s) for latency_s in LATENCIES] for spec in ("esync", "esync:blocking=false")}
    assert min(speeds["esync:blocking=false"]) >= 0.9 * speeds["esync:blocking=false"][0]
    assert speeds["esync"][-1] < 0.2 * speeds["esync"][0]


LATENCIES = (0.0, 0.02, 0.05, 0.1)


def paper(spec: str, latency_s: float) -> float:
    fields = {"training": "none", "workload.samples": "1_000_000", "workload.batch_size": "64", "limits.time_s": "60"}
    scenario = load_scenario("mixed-hardware", {**fields, "network.latency_s": str(latency_s)})
    return run(scenario, spec).samples_per_s


def test_jitter_leaves_every_device_computing() -> None:
    scenario = Scenario(
        devices=[Device(count=2, compute_s=3.5), Device(count=4, compute_s=0.03)],
        compute=Compute(distribution="normal", deviation=0.03),
        workload=TimingWorkload(batch_size=1, samples=8_000),
    )
    for spec in ("esync", "esync:blocking=false"):
        assert min(run(scenario, spec).compute_fraction_by_worker.values()) > 0.93, spec


def test_on_hosts_an_average_crosses_the_links_once_for_all_members() -> None:
    """Two hosts of two: 4 bytes cross each link, where a ring of four would send 6."""
    flat = run(cluster(1.0, 1.0, 1.0, 1.0, samples=16, averaging="ring"), "local:2")
    hosts = run(cluster(1.0, 1.0, 1.0, 1.0, samples=16, averaging="ring", hosts=2), "local:2")
    assert (flat.duration_s, hosts.duration_s) == (2 * (2 + 6), 2 * (2 + 4))
    assert (flat.bytes_total, hosts.bytes_total) == (2 * 2 * 3 * 4, 2 * 2 * 1 * 4)


def test_what_is_compressed_goes_round_all_members_of_all_hosts() -> None:
    training = TrainingConfig(train_samples=64, test_samples=50, batch_size=8, epochs=1, compression="bf16")
    devices = [Device(count=4, compute_s=1.0, bandwidth_gbps=BYTE)]
    networks = [Network(message_bytes=4.0, averaging="ring", hosts=hosts) for hosts in (None, 2)]
    made = [run(Scenario(devices=devices, network=network, training=training), "local:1") for network in networks]
    assert made[0].duration_s == made[1].duration_s == 2 * (1 + 3 * 2.0)


def test_a_part_of_the_gradients_ring_is_hidden_behind_the_backward_pass() -> None:
    shown = run(cluster(3.0, 3.0, samples=8, averaging="ring", hidden_s=1.0), "bsp")
    assert shown.duration_s == 4 * (3 + 4 - 1)
    assert run(cluster(3.0, 3.0, samples=8, averaging="ring", hidden_s=9.0), "bsp").duration_s == 4 * 3
    assert run(cluster(3.0, 3.0, samples=8, averaging="ring", hidden_s=1.0), "local:1").duration_s == 4 * (3 + 4)


def test_an_arbiter_calls_replicas_together_for_a_ring() -> None:
    """A step of 1 s and its report; then the word, and 2 hops of a ring of two with 4 bytes."""
    result = run(cluster(1.0, 1.0, samples=2, latency_s=0.5, averaging="ring"), "diloco:1,quorum=2")
    assert result.duration_s == 0.5 + 1.0 + 0.5 + (0.5 + 4.0 + 2 * 0.5)
    assert (result.bytes_total, result.updates) == (2 * 4, 1)


def test_who_dies_before_it_hears_the_call_is_not_awaited() -> None:
    scenario = cluster(1.0, 1.0, 1.0, samples=30, latency_s=0.5, averaging="ring")
    faults = Faults(leaves=[Leave(worker=2, time_s=2.25)])
    result = run(msgspec.structs.replace(scenario, faults=faults), "diloco:1,quorum=3")
    assert (result.status, result.samples) == ("ok", 30)


def test_a_server_works_on_every_gradient_of_a_mean_and_on_none_alone() -> None:
    network = Network(combine_s=0.5)
    devices = [Device(count=3, compute_s=1.0)]
    scenario = Scenario(devices=devices, network=network, workload=TimingWorkload(batch_size=1, samples=12))
    assert simulate(scenario, "bsp").duration_s == 3 * (1.0 + 3 * 0.5) + 1.0
    assert simulate(scenario, "k-async:2").duration_s > simulate(scenario, "asp").duration_s == 4 * 1.0
    assert simulate(scenario, "switch:bsp@0.5,asp").duration_s == 2 * (1.0 + 3 * 0.5) + 2 * 1.0
