"""Real jobs of two workers, as small as they can be."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import msgspec
import pytest

from polyrhythm.core import Report, Trace, replay
from polyrhythm.emulation.local import JobProcesses, LocalRun, keep_traces, read_figures, run_local
from polyrhythm.emulation.pace import Death, Emulation, SlowTime
from polyrhythm.errors import PolicyError, PolyrhythmError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.coordinator.recorder import phase_file
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.telemetry import RunResult
from polyrhythm.testing.processes import workers
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Task
from polyrhythm.training.data.tasks import build_task
from tests import wrong_policies
from tests.ends import await_ends

SAMPLES, BATCH, EPOCHS = 64, 8, 2
TRAINING = TrainingConfig(train_samples=SAMPLES, test_samples=50, batch_size=BATCH, epochs=EPOCHS, learning_rate=0.05)
QUICK = Emulation([0.001])


@pytest.fixture(scope="module")
def task() -> Task:
    return build_task(TRAINING)


def run(policy: str, *emulations: Emulation, training: TrainingConfig = TRAINING) -> LocalRun:
    return LocalRun("tiny", parse_policy(policy), training, 0, emulations or (QUICK, QUICK), target=0.01)


def changed(**changes: Any) -> TrainingConfig:
    return msgspec.structs.replace(TRAINING, **changes)


def check_accounts(result: RunResult) -> None:
    """What must hold of every run that processes its workload."""
    assert (result.where, result.status, result.scenario) == ("local", "ok", "tiny")
    assert result.samples == SAMPLES * EPOCHS
    assert [point.samples for point in result.curve] == [SAMPLES, 2 * SAMPLES]
    assert result.steps == sum(result.steps_by_worker.values()) == SAMPLES * EPOCHS // BATCH
    assert result.compute_fraction + result.transfer_fraction + result.idle_fraction == pytest.approx(1.0)
    assert result.time_to_target_s == result.curve[0].time_s <= result.duration_s == result.curve[1].time_s
    assert result.gradients_computed == result.gradients_applied + result.gradients_dropped


def test_every_sample_is_processed_and_accounted_for(task: Task, tmp_path: Path) -> None:
    path = tmp_path / "kept" / "trace.jsonl"
    result = run_local(run("local:2"), task, path)
    check_accounts(result)
    assert (result.updates, result.staleness_mean, result.gradients_computed) == (4, None, 16)
    assert result.bytes_total > 0
    assert result.final_accuracy is not None
    trace = Trace.load(path)
    assert len(list(replay(parse_policy("local:2"), trace))) == len(trace.entries)
    assert result.trace_path == str(path)


@pytest.mark.parametrize("policy", ["asp", "bsp"])
def test_workers_with_thin_links_talk_over_tcp(task: Task, policy: str) -> None:
    thin = Emulation([0.001], bytes_per_s=50e6)
    result = run_local(run(policy, QUICK, thin), task)
    check_accounts(result)
    assert result.server_busy_s is not None
    assert result.server_busy_s > 0


@pytest.mark.parametrize("policy", ["elastic", "greedy"])
def test_a_worker_whose_messages_are_late_for_a_while_is_seen_to_be(task: Task, policy: str, tmp_path: Path) -> None:
    spec = f"{policy}:(switch:bsp@0.9,asp),window=1,patience=1"
    late = Emulation([0.001], (SlowTime(1, 3, by_step=True, extra_latency_s=0.1),))
    result = run_local(run(spec, QUICK, QUICK, late), task, tmp_path / "trace.jsonl")
    assert (result.status, result.samples) == ("ok", SAMPLES * EPOCHS)
    trace = Trace.load(tmp_path / "trace.jsonl")
    list(replay(parse_policy(spec), trace))
    events = (entry.event for entry in trace.entries)
    reports = [event for event in events if isinstance(event, Report) and event.worker == 2]
    assert max(report.transfer_s for report in reports) >= 0.1


@pytest.mark.parametrize("policy", ["kbandit:window=1,every=2", "rlp"])
def test_policies_that_learn_run_on_real_workers(task: Task, policy: str, tmp_path: Path) -> None:
    late = Emulation([0.001], (SlowTime(2, 4, by_step=True, extra_s=0.05),))
    result = run_local(run(policy, QUICK, QUICK, late), task, tmp_path / "trace.jsonl")
    assert (result.status, result.samples) == ("ok", SAMPLES * EPOCHS)
    trace = Trace.load(tmp_path / "trace.jsonl")
    assert len(list(replay(parse_policy(policy), trace))) == len(trace.entries)


def test_servers_sum_up_replicas_also_over_thin_links(task: Task) -> None:
    result = run_local(run("local:2", QUICK, Emulation([0.001], bytes_per_s=50e6))._replace(averaging="server"), task)
    check_accounts(result)
    assert result.updates == 4
    assert result.bytes_pushed == result.bytes_pulled > 0


def test_a_worker_that_kills_itself_is_replaced_by_the_others(task: Task) -> None:
    result = run_local(run("asp", QUICK, Emulation([0.001], deaths=(Death(9, step=2),))), task)
    assert (result.status, result.samples) == ("ok", SAMPLES * EPOCHS)
    assert result.updates == result.steps == SAMPLES * EPOCHS // BATCH
    assert result.steps_by_worker[1] == 2
    assert result.dropped_by_reason == {"left": 1}


@pytest.mark.parametrize("name", ["Raises", "RaisesByTheClock"])
def test_a_wrong_policy_is_refused_as_in_the_simulator(task: Task, name: str) -> None:
    line = r"raised ValueError\('oops'\) at Report of worker 1 with clock 1 \(wrong_policies.py:\d+\)$"
    with pytest.raises(PolicyError, match=line):
        run_local(run(f"{wrong_policies.__file__}:{name}"), task)


def test_a_diverging_run_says_so(task: Task) -> None:
    result = run_local(run("asp", training=changed(learning_rate=1e30)), task)
    assert result.status == "diverged"
    assert "lower training.learning_rate" in result.message


def test_a_run_that_goes_back_has_lost_samples(task: Task) -> None:
    """Here BSP diverges as well, so that it ends there."""
    result = run_local(run("asp", training=changed(learning_rate=1e30, rollback=True)), task)
    assert result.status == "diverged"
    assert re.search(r"the loss of rank \d is \S+: diverged after \d+ samples", result.message)
    assert 0 < result.rolled_back_samples <= SAMPLES


def test_trials_that_are_undone_leave_no_trace(task: Task) -> None:
    """Parameters, momentum and the mini-batches are those of a job without them."""
    training = changed(train_samples=4 * SAMPLES, momentum=0.9)
    tried, plain = (
        run_local(run(policy, training=training), build_task(training)) for policy in ("tests.trying:Trying", "bsp")
    )
    assert tried.rolled_back_samples > 0
    assert tried.updates > plain.updates
    assert [point.loss for point in tried.curve] == [point.loss for point in plain.curve]


def crew(folder: Path, work: Callable[[Path], int]) -> JobProcesses:
    """A coordinator, and a worker that does something else than training."""
    settings = JobConfig(job=uuid.uuid4().hex, figures=str(folder / "figures.json"))
    return JobProcesses(settings, folder, (), work)


def give_up(folder: Path) -> int:
    print("first\nout of ideas", file=sys.stderr)
    return 1


def idle(folder: Path) -> int:
    signal.pause()
    return 0


def test_a_worker_that_fails_ends_the_job_with_its_last_words(tmp_path: Path) -> None:
    with (
        pytest.raises(PolyrhythmError, match="worker 0 failed: out of ideas"),
        crew(tmp_path, give_up) as broken,
    ):
        broken.wait()
    assert not any(alive(pid) for pid in broken.pids)
    assert read_figures(run("asp"), tmp_path).epochs == []


def test_ctrl_c_leaves_no_process(tmp_path: Path) -> None:
    interrupted = crew(tmp_path, idle)
    with contextlib.suppress(KeyboardInterrupt), interrupted:
        raise KeyboardInterrupt
    assert not any(alive(pid) for pid in interrupted.pids)


FORK_SERVER = """
from multiprocessing import forkserver
from polyrhythm.emulation.local import fork_server_context

fork_server_context()
with open(f"/proc/{forkserver._forkserver._forkserver_pid}/status") as status:
    print(*(line for line in status if line.startswith("SigBlk:")))
"""


def test_ctrl_c_is_for_the_process_that_has_started_the_others() -> None:
    """In a process of its own, as one has one fork server, whoever has started it."""
    said = subprocess.run([sys.executable, "-c", FORK_SERVER], capture_output=True, text=True, check=True).stdout
    assert int(said.split()[1], 16) & 1 << signal.SIGINT - 1


def test_ctrl_c_while_a_process_starts_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(process: ForkServerProcess) -> None:
        if len(started) == 1:
            raise KeyboardInterrupt
        started.append(process)
        start(process)

    started: list[ForkServerProcess] = []
    start = ForkServerProcess.start
    monkeypatch.setattr(ForkServerProcess, "start", interrupted)
    crew_of_one = crew(tmp_path, idle)
    with pytest.raises(KeyboardInterrupt), crew_of_one:
        pass
    assert not started[0].is_alive()


def be_killed(rank: int, folder: Path) -> None:
    """Start processes, and be gone without a word."""
    with crew(folder, idle) as orphans:
        (folder / "pids").write_text(" ".join(map(str, orphans.pids)), encoding="utf-8")
        os.kill(os.getpid(), signal.SIGKILL)


def test_no_process_outlives_a_killed_starter(tmp_path: Path) -> None:
    with workers(be_killed, 1, tmp_path) as starter:
        assert starter.join(30)[0].exit_code == -signal.SIGKILL
    pids = [int(pid) for pid in (tmp_path / "pids").read_text(encoding="utf-8").split()]
    assert len(pids) == 2
    assert await_ends(pids, 30)


def alive(pid: int | None) -> bool:
    """Whether there is such a process."""
    return pid is not None and Path(f"/proc/{pid}").exists()


@pytest.mark.parametrize(
    ("policy", "changes", "message"),
    [
        ("asp", {"optimizer_options": {"lrr": 1}}, "optimizer SGD has no option 'lrr': did you mean lr?"),
    ],
)
def test_what_cannot_run_is_refused_before_a_process_starts(
    policy: str, changes: dict[str, Any], message: str, task: Task
) -> None:
    with pytest.raises(PolyrhythmError, match=re.escape(message)):
        run_local(run(policy, training=changed(**changes)), task)


def test_a_trace_takes_the_place_of_all_phases_of_the_one_before(tmp_path: Path) -> None:
    made, trace, other = tmp_path / "made", tmp_path / "kept" / "bsp.jsonl", tmp_path / "kept" / "asp-phase-2.jsonl"
    made.mkdir()
    for phases in (3, 1):
        for number in range(1, phases + 1):
            (made / phase_file("job", number)).write_text(f"{number} of {phases}")
        assert keep_traces(made, trace) == str(trace)
        assert trace.read_text() == f"1 of {phases}"
        other.touch()
        kept = ["asp-phase-2.jsonl", *(phase_file("bsp", number) for number in range(2, phases + 1)), "bsp.jsonl"]
        assert sorted(path.name for path in trace.parent.iterdir()) == kept
