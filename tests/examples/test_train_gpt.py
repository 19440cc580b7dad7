"""The language model trains as a plain script for torchrun, and with the same losses under `polyrhythm run`."""

import os
import random
import re
import subprocess
import sys
from pathlib import Path

SCRIPT = str(Path(__file__).parents[2] / "examples" / "train_gpt.py")
SMALL = ["--vocabulary", "60", "--context", "8", "--width", "16", "--heads", "2", "--layers", "1"]
TORCHRUN = [
    "torch.distributed.run",
    "--standalone",
    "--nproc-per-node",
    "2",
    str(Path(__file__).with_name("leave_at_once.py")),
]
RUN = ["polyrhythm", "run", "--nproc-per-node", "2", "--policy"]


def text(path: Path, seed: int) -> str:
    """Each word suggests the next."""
    draw, words, word = random.Random(seed), list[str](), 0
    for _ in range(5000):
        word = (2 * word + draw.randrange(3)) % 50
        words.append(f"w{word}")
    path.write_text(" ".join(words), encoding="utf-8")
    return str(path)


def trained(folder: Path, way: list[str], *flags: str) -> tuple[list[tuple[str, str]], list[float]]:
    """The losses that were printed, and the perplexities."""
    texts = ["--text", text(folder / "train.txt", 1), "--test", text(folder / "test.txt", 2)]
    every = ["--log-every", "20", "--evaluate", "1", "--samples", "480", "--lr", "0.01", "--warmup", "1"]
    done = subprocess.run(
        [sys.executable, "-m", *way, SCRIPT, *texts, *SMALL, *every, *flags],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    perplexities = re.findall(r"after step \d+: perplexity ([\d.]+)", done.stdout)
    return re.findall(r"step (\d+): .* loss ([\d.]+)", done.stdout), [float(found) for found in perplexities]


def test_losses_under_bsp_are_those_under_torchrun(tmp_path: Path) -> None:
    losses, perplexities = trained(tmp_path, TORCHRUN, "--bf16")
    assert [step for step, _ in losses] == ["1", "20", "40", "60"]
    assert perplexities[-1] < 0.85 * perplexities[0]
    assert trained(tmp_path, [*RUN, "bsp"], "--bf16") == (losses, perplexities)


def test_replicas_learn_under_diloco(tmp_path: Path) -> None:
    _, perplexities = trained(tmp_path, [*RUN, "diloco:4,overlap=2"])
    assert perplexities[-1] < 0.85 * perplexities[0]
