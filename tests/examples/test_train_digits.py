"""The example trains under every way to start it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = str(Path(__file__).parents[2] / "examples" / "train_digits.py")
WAYS = {
    "alone": [],
    "run": ["-m", "polyrhythm", "run", "--nproc-per-node", "2", "--policy", "ssp:3"],
    "torchrun": ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"],
}


@pytest.mark.parametrize("way", WAYS)
def test_digits_are_learned(way: str) -> None:
    done = subprocess.run(
        [sys.executable, *WAYS[way], SCRIPT, "--epochs", "2"],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    lines = re.findall(r"epoch (\d): (\S+), accuracy (0\.\d+)", done.stdout)
    assert [line[:2] for line in lines] == [(str(epoch), "ssp:3" if way == "run" else "bsp") for epoch in range(2)]
    assert float(lines[-1][2]) > 0.5
