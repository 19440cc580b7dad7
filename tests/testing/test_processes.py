import os
import signal
import subprocess
import time
from typing import Any

import pytest
import torch

from polyrhythm.testing.processes import Workers, WorkersError, first_child, run_workers, workers


def results_by_rank(rank: int, factor: float) -> dict[str, Any]:
    return {"rank": rank, "tensor": torch.full((3,), factor * rank), "threads": torch.get_num_threads()}


def test_results_come_back_by_rank() -> None:
    results = run_workers(results_by_rank, 3, 2.0)
    assert [result["rank"] for result in results] == [0, 1, 2]
    assert [result["tensor"].tolist() for result in results] == [[0.0] * 3, [2.0] * 3, [4.0] * 3]
    assert {result["threads"] for result in results} == {1}


def fail_on_rank_one(rank: int) -> None:
    if rank == 1:
        raise KeyError("broken here")


def test_a_traceback_comes_back() -> None:
    with pytest.raises(WorkersError, match=r"worker 1 ended with 1[\s\S]*fail_on_rank_one[\s\S]*broken here"):
        run_workers(fail_on_rank_one, 2)


def return_the_unpicklable(rank: int) -> Any:
    return lambda: rank


def test_a_result_that_cannot_travel_is_an_error_of_its_worker() -> None:
    with pytest.raises(WorkersError, match="pickle"):
        run_workers(return_the_unpicklable, 1)


def die_on_rank_zero(rank: int) -> int:
    if rank == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return rank


def test_a_killed_worker_is_reported_with_its_signal() -> None:
    with workers(die_on_rank_zero, 2) as running:
        outcomes = running.join(20)
    assert [(o.exit_code, o.value, o.ok) for o in outcomes] == [(-signal.SIGKILL, None, False), (0, 1, True)]


def hang_always(rank: int) -> None:
    time.sleep(3600)


def test_a_worker_that_hangs_is_killed() -> None:
    with pytest.raises(WorkersError, match=r"workers \[0\] still run after 0.5 s"), workers(hang_always, 1) as running:
        running.join(0.5)
    assert running.processes[0].exitcode is not None


def hang(rank: int) -> None:
    time.sleep(3600 if rank == 1 else 0)


def test_who_has_ended_is_told_with_who_has_not() -> None:
    with pytest.raises(WorkersError, match=r"(?s)workers \[1\] still run.*worker 0 ended with 0"):
        run_workers(hang, 2, timeout_s=0.5)


def test_a_stopped_worker_can_be_left_behind() -> None:
    with workers(hang, 2) as running:
        running.kill(1, signal.SIGSTOP)
        assert [outcome.rank for outcome in running.join(20, leave=[1])] == [0]
    assert running.processes[1].exitcode == -signal.SIGKILL


def start_another(rank: int) -> int | None:
    """Start a worker that hangs, and end without having closed it."""
    running = Workers(hang_always, 1)
    return running.processes[0].pid


def test_workers_do_not_outlive_their_parent() -> None:
    pid = run_workers(start_another, 1)[0]
    deadline = time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not alive(pid)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_the_first_child_of_a_process() -> None:
    with subprocess.Popen(["sh", "-c", "sleep 9 & wait"]) as parent:
        child = first_child(parent.pid)
        assert child != parent.pid
        os.kill(child, 9)


def test_a_process_that_has_ended_has_no_child_any_more() -> None:
    with subprocess.Popen(["true"], stdin=subprocess.PIPE) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with pytest.raises(ProcessLookupError):  # nobody has waited for it
            first_child(process.pid)
    with pytest.raises(ProcessLookupError):
        first_child(process.pid)
