from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from polyrhythm.cli.app import app
from polyrhythm.core import Trace
from polyrhythm.doctor.culprits import culprits
from polyrhythm.doctor.readers import own_traces
from polyrhythm.doctor.readers.own_traces import evidence_of_trace, read_own
from polyrhythm.errors import TraceError
from polyrhythm.sim import Compute, Device, Network, Scenario, TimingWorkload, simulate


def traced(folder: Path, slow_s: float = 0.1, policy: str = "bsp", steps: int = 60) -> Path:
    """A simulated job of three workers, the last of which may be slow."""
    path = folder / f"{policy.replace(':', '-')}.jsonl"
    scenario = Scenario(
        devices=[Device(count=2, compute_s=0.1), Device(compute_s=slow_s)],
        compute=Compute(distribution="normal", deviation=0.02),
        network=Network(averaging="ring", averaging_s=0.01),
        workload=TimingWorkload(batch_size=4, samples=12 * steps, dataset_samples=12 * steps),
    )
    simulate(scenario, policy, trace=path)
    return path


def test_a_slow_worker_of_a_traced_job_is_named(tmp_path: Path) -> None:
    evidence = read_own([traced(tmp_path, slow_s=0.15)])
    (one,) = culprits(evidence)[0]
    assert (one.rank, one.part, one.kind) == (2, "computing", "persistent")
    assert one.lost_share == pytest.approx(0.05 / 0.16, abs=0.02)


def test_nobody_is_named_where_nobody_is_slow(tmp_path: Path) -> None:
    assert culprits(read_own([traced(tmp_path)]))[0] == []


def test_times_of_a_step_add_up_to_the_job(tmp_path: Path) -> None:
    path = traced(tmp_path)
    evidence, trace = read_own([path]), Trace.load(path)
    whole_s = trace.entries[-1].event.time_s
    assert evidence.steps >= 57
    assert evidence.step_s.sum(axis=1) == pytest.approx(np.full(3, whole_s), rel=0.05)
    assert evidence.communication_s.mean() == pytest.approx(0.01, rel=0.05)
    assert (evidence.batch_size, evidence.epoch_samples) == (4, 720)


def test_under_an_asynchronous_policy_nobody_waits_in_an_exchange(tmp_path: Path) -> None:
    evidence = read_own([traced(tmp_path, slow_s=0.2, policy="asp")])
    assert not evidence.synchronous
    assert evidence.notes == ("under asp nobody waits in each step: what is lost is what bsp would lose",)
    assert not evidence.communication_s.any()
    assert [one.rank for one in culprits(evidence)[0]] == [2]


def test_the_longest_phase_counts(tmp_path: Path) -> None:
    long, short = traced(tmp_path), traced(tmp_path, policy="ssp:3", steps=10)
    evidence = read_own([short, long])
    assert evidence.source == f"{long}, under bsp"
    assert evidence.notes == ("1 shorter phases of the folder were left out",)


def test_a_trace_of_one_worker_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    simulate(Scenario(devices=[Device()], workload=TimingWorkload(batch_size=1, samples=9)), "bsp", trace=path)
    with pytest.raises(TraceError, match="has steps of 1 workers, and it takes 2 to compare"):
        read_own([path])


def test_a_trace_that_is_cut_off_names_its_line(tmp_path: Path) -> None:
    path = traced(tmp_path)
    path.write_text(path.read_text(encoding="utf-8")[:-30], encoding="utf-8")
    with pytest.raises(TraceError, match=r"not JSON .*; was the trace cut off\?"):
        read_own([path])


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    path = traced(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    with pytest.raises(TraceError, match="has steps of 0 workers"):
        evidence_of_trace(Trace.parse(lines[:2]), "cut")


def test_a_slow_one_of_four_real_workers_is_named(tmp_path: Path) -> None:
    words = "compare", "local-straggler", "--on", "local", "--policies", "bsp", "--set", "training.epochs=2"
    done = CliRunner().invoke(app, [*words, "--trace", str(tmp_path)])
    assert done.exit_code == 0, done.output
    (one,) = culprits(read_own(sorted(tmp_path.glob("*.jsonl"))))[0]
    assert (one.rank, one.part, one.kind) == (3, "computing", "persistent")
    assert one.excess_s == pytest.approx(0.045, rel=0.3)


def test_a_trace_that_does_not_fit_into_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_traces, "LARGEST", 100)
    with pytest.raises(TraceError, match="GiB; trace fewer epochs"):
        read_own([traced(tmp_path)])
