from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from polyrhythm.cli.app import app
from polyrhythm.core import Cluster, Entry, Header, Joined, Left, Proceed, Report, Trace
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
    assert evidence.notes == (
        "72 of 177 steps were left out: others made none beside them",
        "under asp nobody waits in each step: what is lost is what bsp would lose",
    )
    assert not evidence.communication_s.any()
    assert [one.rank for one in culprits(evidence)[0]] == [2]


def test_unequal_mini_batches_are_told_as_equal_ones(tmp_path: Path) -> None:
    """What counts are all rounds of 12 samples, not the steps on the largest mini-batches alone."""
    evidence = read_own([traced(tmp_path, slow_s=0.3, policy="balanced", steps=120)])
    equal = read_own([traced(tmp_path, slow_s=0.3, steps=120)])
    assert (evidence.ranks, evidence.steps, evidence.batch_size) == ((0, 1, 2), equal.steps, 4)
    assert evidence.own_s.mean(axis=1) == pytest.approx(equal.own_s.mean(axis=1), rel=0.05)
    assert evidence.waiting_s.mean(axis=1) == pytest.approx(equal.waiting_s.mean(axis=1), rel=0.05)
    assert evidence.communication_s.mean() == pytest.approx(equal.communication_s.mean(), rel=0.05)
    assert (evidence.equalised, equal.equalised) == (True, False)
    assert evidence.notes == (
        "under balanced mini-batches are unequal: what is told is of equal ones, as under bsp, if a step takes as long "
        "as it has samples",
    )
    (one,) = culprits(evidence)[0]
    assert (one.rank, one.part, one.kind) == (2, "computing", "persistent")


def test_a_last_round_of_fewer_samples_does_not_count() -> None:
    entries = [Entry(Joined((0, 1), 0.0), (Proceed((0, 1), shares=(6, 2)),))]
    for clock in range(1, 61):
        sizes = (3, 1) if clock % 20 == 0 else (6, 2)
        for worker, samples in enumerate(sizes):
            decisions = (Proceed((0, 1), shares=(6, 2)),) if worker else ()
            entries.append(Entry(Report(worker, clock, 0.1 * clock, samples, 0.1), decisions))
    evidence = evidence_of_trace(Trace(Header("balanced", Cluster(2, 4)), tuple(entries)), "a job")
    assert evidence.steps == 60 - 3 - 1
    assert evidence.own_s.mean(axis=1) == pytest.approx([0.1 * 4 / 6, 0.1 * 4 / 2])


def test_the_longest_phase_counts(tmp_path: Path) -> None:
    long, short = traced(tmp_path), traced(tmp_path, policy="ssp:3", steps=10)
    evidence = read_own([short, long])
    assert evidence.source == f"{long}, under bsp"
    assert evidence.notes == ("1 shorter trace of the folder was left out",)


def test_a_trace_of_one_worker_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "one.jsonl"
    simulate(Scenario(devices=[Device()], workload=TimingWorkload(batch_size=1, samples=9)), "bsp", trace=path)
    with pytest.raises(TraceError, match="has steps of 1 workers, and it takes 2 to compare"):
        read_own([path])


def test_of_a_trace_whose_last_line_is_cut_off_the_others_count(tmp_path: Path) -> None:
    path = traced(tmp_path, slow_s=0.15)
    text = path.read_text(encoding="utf-8")
    whole = read_own([path])
    path.write_text(text + text.splitlines()[-1][:30], encoding="utf-8")
    evidence = read_own([path])
    assert evidence.notes == (f"the last line of {path.name} is cut off (was the job killed?): the others count",)
    assert evidence.own_s == pytest.approx(whole.own_s)


def test_a_line_that_is_cut_off_before_the_last_is_refused(tmp_path: Path) -> None:
    path = traced(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    path.write_text("\n".join([*lines[:9], lines[9][:-30], *lines[10:]]) + "\n", encoding="utf-8")
    with pytest.raises(TraceError, match=r":10: not JSON .*; was the trace cut off\?"):
        read_own([path])


@pytest.mark.parametrize("begun", ["", '{"format":1,"pol'])
def test_a_phase_that_had_hardly_begun_hides_no_other(begun: str, tmp_path: Path) -> None:
    path, empty = traced(tmp_path), tmp_path / "a.jsonl"
    empty.write_text(begun, encoding="utf-8")
    assert read_own([empty, path]).notes == ("1 shorter trace of the folder was left out",)
    with pytest.raises(TraceError, match=r"a\.jsonl:1: not JSON"):
        read_own([empty])


def test_traces_of_two_jobs_are_not_mixed(tmp_path: Path) -> None:
    paths = [tmp_path / f"{name}.jsonl" for name in ("one-phase-0", "one-phase-1", "two-phase-0")]
    for path in paths:
        Trace(Header("bsp", Cluster(2), {"job": path.name[:3]}), together([0.1, 0.1], 30)).save(path)
    assert read_own(paths[:2]).notes == ("1 shorter trace of the folder was left out",)
    with pytest.raises(TraceError, match=r"has traces of 2 jobs \(one, two\); give a folder with those of one"):
        read_own(paths)


def together(
    seconds: Sequence[float], rounds: int, at_s: float = 0.0, smaller: Collection[tuple[int, int]] = ()
) -> tuple[Entry, ...]:
    """Rounds in which workers take so many seconds each and meet; `smaller` are rounds and workers of less samples."""
    everyone = tuple(range(len(seconds)))
    entries: list[Entry] = [Entry(Joined(everyone, at_s), (Proceed(everyone),))]
    for number in range(rounds):
        order = sorted(everyone, key=lambda worker: seconds[worker])
        for worker in order:
            samples = 1 if (number, worker) in smaller else 4
            last = worker == order[-1]
            report = Report(worker, number + 1, at_s + seconds[worker], samples, seconds[worker])
            entries.append(Entry(report, (Proceed(everyone),) if last else ()))
        at_s += max(seconds)
    return tuple(entries)


def test_steps_are_compared_with_those_that_began_with_them() -> None:
    trace = Trace(Header("bsp", Cluster(2)), together([0.1, 0.2], 40, smaller={(10, 0), (20, 1)}))
    evidence = evidence_of_trace(trace, "a job")
    assert np.ptp(evidence.start_s, axis=0).max() == 0.0
    assert evidence.steps == 37
    assert evidence.notes == ("2 of 76 steps were left out: others made none beside them",)


def test_workers_that_come_are_not_compared_with_steps_that_they_were_not_there_for() -> None:
    alone, later = together([0.1, 0.1], 60), together([0.3, 0.3, 0.3], 40, at_s=6.0)
    joined = Entry(Joined((2,), 6.0), later[0].decisions)
    evidence = evidence_of_trace(Trace(Header("bsp", Cluster(3)), (*alone, joined, *later[1:])), "a job")
    assert (evidence.ranks, evidence.synchronous) == ((0, 1), True)
    assert culprits(evidence)[0] == []
    assert evidence.notes == ("workers came or left: the longest time with the same ones counts, 118 of 237 steps",)


def test_workers_that_leave_do_not_shorten_what_the_others_are_judged_by() -> None:
    first, rest = together([0.1, 0.1, 0.1], 5), together([0.1, 0.2], 60, at_s=1.0)
    left = Entry(Left(2, 1.0, 5), rest[0].decisions)
    evidence = evidence_of_trace(Trace(Header("bsp", Cluster(3)), (*first, left, *rest[1:])), "a job")
    assert (evidence.ranks, evidence.steps, evidence.synchronous) == ((0, 1), 60, True)
    assert [one.rank for one in culprits(evidence)[0]] == [1]


def test_a_trace_without_steps_is_refused(tmp_path: Path) -> None:
    path = traced(tmp_path)
    lines = path.read_text(encoding="utf-8").splitlines()
    with pytest.raises(TraceError, match="has steps of 0 workers"):
        evidence_of_trace(Trace.parse(lines[:2]), "cut")


@pytest.mark.parametrize("policy", ["backup", "k-sync:2"])
def test_a_trace_without_a_step_of_all_is_refused(policy: str, tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["doctor", str(traced(tmp_path, policy=policy))])
    assert (done.exit_code, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert "there is no step that all workers have made to its end" in done.stderr


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
