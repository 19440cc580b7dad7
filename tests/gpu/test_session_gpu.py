"""Sessions on CUDA tensors. Two workers share the one GPU under policies that need no NCCL; one goes through all."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("train_cuda.py")


def train(workers: int, policies: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "polyrhythm", "run", "--nproc-per-node", str(workers)]
    first = policies.partition(";")[0]
    done = subprocess.run(
        [*command, "--policy", first, str(SCRIPT), policies], capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def test_one_worker_in_every_kind_of_phase() -> None:
    """Synchronous mode on NCCL, averages on NCCL, and servers on the host, with Adam's state carried through all."""
    policies = "bsp;asp;local:4;bsp"
    lines = train(1, policies)
    assert [line["policy"] for line in lines] == policies.split(";")
    assert [line["seen"] for line in lines] == [512] * 4
    assert lines[-1]["accuracy"] > 0.9


def test_two_workers_share_the_servers() -> None:
    policies = "asp;ssp:2;k-async:2"
    lines = train(2, policies)
    for generation in range(3):
        one, two = (line for line in lines if line["epoch"] == generation)
        assert one["seen"] + two["seen"] >= 512
        assert one["total"] == two["total"]
    assert min(line["accuracy"] for line in lines if line["epoch"] == 2) > 0.85
