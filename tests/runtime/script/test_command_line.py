"""``polyrhythm run`` on a script that knows nothing of it: switched from outside, and with a worker that is killed."""

import os
import subprocess
import sys
from pathlib import Path

from polyrhythm.core import Report, Trace
from tests.runtime.script.bystander import bystander
from tests.runtime.script.runs import SCRIPTS, Run

SAMPLES, EPOCHS, LIMIT_S = 192, 3, 120.0


def test_a_refusal_is_said_once_and_is_the_exit_status(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "polyrhythm", "run", "--nproc-per-node", "2", str(SCRIPTS / "odd.py"), "FSDP"],
        cwd=tmp_path,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 2
    said = [line for line in done.stderr.splitlines() if "FullyShardedDataParallel shards parameters" in line]
    assert len(said) == 1, done.stderr
    assert "odd.py:" in said[0]
    assert "failed with exit code" not in done.stderr


def run(folder: Path, plan: dict[int, dict[str, str]]) -> "subprocess.CompletedProcess[str]":
    """Two workers in a job of the folder's name, with a trace of each phase; each has an interpreter of its own."""
    flags = ("--job", folder.name, "--nproc-per-node", "2", "--start-method", "spawn")
    traces = ("--trace", str(folder / "traces"))
    script = (str(SCRIPTS / "residual.py"), "--samples", str(SAMPLES), "--epochs", str(EPOCHS))
    done = subprocess.run(
        [sys.executable, "-m", "polyrhythm", "run", *flags, *traces, *script],
        cwd=folder,
        env={**os.environ, **bystander(folder, plan)},
        capture_output=True,
        text=True,
        check=False,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stderr
    return done


def phases(folder: Path) -> list[Trace]:
    return [Trace.load(path) for path in sorted((folder / "traces").iterdir())]


def counted(traces: list[Trace]) -> int:
    """Samples of all steps that count, with those of the warm-up step, which torch makes."""
    warm_up = traces[0].header.cluster.processed_samples
    return warm_up + sum(entry.event.samples for t in traces for entry in t.entries if isinstance(entry.event, Report))


def test_bsp_to_asp_to_bsp_by_ctl(tmp_path: Path) -> None:
    ask = f"ctl {tmp_path.name} switch"
    done = run(tmp_path, {0: {"4": f"{ask} asp", "asp": f"{ask} bsp"}})
    assert Run(tmp_path, [0, 0]).seen == [list(range(SAMPLES))] * EPOCHS
    traces = phases(tmp_path)
    assert [trace.header.policy for trace in traces] == ["bsp", "asp", "bsp"]
    assert counted(traces) == EPOCHS * SAMPLES
    assert len([line for line in done.stdout.splitlines() if "right" in line]) == EPOCHS  # others are from ctl


def test_a_killed_worker_is_named_and_the_other_finishes(tmp_path: Path) -> None:
    done = run(tmp_path, {1: {"15": "kill -9"}})
    seen = Run(tmp_path, [0]).epochs_of(0)
    assert sorted(seen[-1]) == list(range(SAMPLES)), "the survivor has the last epoch to itself"
    assert counted(phases(tmp_path)) == EPOCHS * SAMPLES
    assert "polyrhythm: rank 1 was killed by SIGKILL; 1 worker goes on" in done.stderr
    assert "rank 1 died in phase 1 (bsp), epoch 1" in done.stderr
