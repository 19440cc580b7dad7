"""The job file of the examples, on a script that names another policy."""

import os
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_job_says_once_what_its_file_overrules() -> None:
    script = [str(EXAMPLES / "train_digits.py"), "--epochs", "1"]
    done = subprocess.run(
        [sys.executable, "-m", "polyrhythm", "run", "--config", "examples/job.toml", "--epochs", "1", *script],
        cwd=EXAMPLES.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("polyrhythm: epochs 1 of --epochs holds; 5 of examples/job.toml is overruled") == 1
    line = "policy ssp:3 of examples/job.toml holds; bsp of the script's session is overruled"
    assert done.stderr.count(line) == done.stderr.count("overruled") - 1 == 1
    assert "phase 1: policy ssp:3 on 2 workers" in done.stderr
