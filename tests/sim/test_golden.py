"""Small runs whose traces may only change on purpose: POLYRHYTHM_REWRITE_GOLDEN=1 pytest tests/sim/test_golden.py."""

import os
from pathlib import Path

import pytest

from polyrhythm.policies import parse_policy
from polyrhythm.sim import (
    Compute,
    Device,
    Faults,
    Leave,
    Network,
    Scenario,
    Straggler,
    TimingWorkload,
    job,
    load_scenario,
    simulate,
)

GOLDEN = Path(__file__).parent / "golden"

FAULTY = Scenario(
    name="faulty",
    devices=[Device(count=2, compute_s=1.0, bandwidth_gbps=10), Device(compute_s=2.5, bandwidth_gbps=1)],
    compute=Compute(distribution="normal", deviation=0.2),
    network=Network(message_bytes=50e6, server_gbps=2, shards=2, latency_s=0.01),
    faults=Faults(
        stragglers=[Straggler(workers=[0], start_s=3, duration_s=4, slowdown=3, extra_latency_s=0.2)],
        leaves=[Leave(worker=1, step=3, back_after_s=2)],
    ),
    workload=TimingWorkload(batch_size=4, samples=50),
)
RING = Scenario(
    name="ring",
    devices=[Device(count=3, compute_s=0.5, bandwidth_gbps=5)],
    compute=Compute(distribution="normal", deviation=0.1),
    network=Network(message_bytes=1e8, averaging="ring", latency_s=0.001),
    workload=TimingWorkload(batch_size=8, samples=150),
)
RUNS = {
    "faulty-ssp-1": (FAULTY, "ssp:1"),
    "faulty-k-sync-2": (FAULTY, "k-sync:2"),
    "ring-post-local": (RING, "post-local:2,0.5"),
    "ring-diloco": (RING, "diloco:4,overlap=2,fragments=2"),
    "faulty-fedavg": (FAULTY, "fedavg:0.5,0.3"),
    "faulty-selsync": (FAULTY, "selsync:lssr=0.6"),
    "faulty-esync": (FAULTY, "esync:samples"),
    "faulty-esync-free": (FAULTY, "esync:blocking=false"),
    "mixed-hardware-asp": (load_scenario("mixed-hardware", {"training": "none", "workload.samples": "1500"}), "asp"),
}


@pytest.mark.parametrize("name", RUNS)
def test_golden(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job, "__version__", "any")
    scenario, spec = RUNS[name]
    golden = GOLDEN / f"{name}.jsonl"
    path = golden if os.environ.get("POLYRHYTHM_REWRITE_GOLDEN") == "1" else tmp_path / "trace.jsonl"
    simulate(scenario, parse_policy(spec), seed=1, trace=path)
    assert path.read_text(encoding="utf-8") == golden.read_text(encoding="utf-8")


def test_no_golden_trace_is_left_over() -> None:
    assert sorted(path.stem for path in GOLDEN.iterdir()) == sorted(RUNS)
