"""An unmodified script under ``polyrhythm run --policy bsp`` against torchrun alone: its epochs after the first.

Both jobs live at the same time and take turns, one epoch each, so that each pair of epochs sees the same load of the
machine. The script is examples/train_ddp.py as it is: that it waits for its turn is the doing of a file that Python
itself reads when it starts (sitecustomize), the same on both sides. Exits with 1 if the bar is missed.

``--gloo`` keeps the workers from finding out that they are on one host, so that sums travel as under torchrun, and lets
torchrun's keep their memory, too: what is left is what a step costs besides.

python benchmarks/unmodified.py                 # 30 pairs of epochs, each 10 times over the images
python benchmarks/unmodified.py 13 2 0          # 12 pairs of epochs of a fifth of that, only of the first case
python benchmarks/unmodified.py --gloo 13 2 0 2
"""

import argparse
import math
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import NamedTuple

from rich.console import Console
from rich.table import Table

from polyrhythm.runtime.launch.forked import usual

LARGEST_RATIO, EPOCHS, REPEAT, WORKERS = 1.03, 31, 10, 2
SCRIPT = Path(__file__).parent.parent / "examples" / "train_ddp.py"
WAYS = Path(__file__).parent / "_ways.py"
SIDES = {
    "torchrun": ("torch.distributed.run", "--standalone"),
    "polyrhythm": ("polyrhythm", "run", "--policy", "bsp"),
}
IMAGES = 1500


class Case(NamedTuple):
    """A row of the table: what the script is told, and how many times shorter its epochs are than others'."""

    name: str
    arguments: tuple[str, ...]
    batch_size: int = 25
    shorter: int = 1
    script: Path = SCRIPT


CASES = [
    Case("5 k parameters", ("--hidden", "64")),
    Case("5 k, forked loaders", ("--hidden", "64", "--workers", "1")),
    Case("0.8 M parameters", ("--hidden", "11000")),
    Case("0.8 M, batches of 250", ("--hidden", "11000"), batch_size=250),
    Case("11 M parameters", ("--hidden", "150000"), shorter=5),
    Case("bf16", ("bf16",), script=WAYS),
    Case("compiled", ("compiled",), script=WAYS),
    Case("a stream", ("stream",), script=WAYS),
    Case("no loader", ("drawn",), script=WAYS),
]

TURNS = """
import os
if "RANK" in os.environ or "POLYRHYTHM_FORKS" in os.environ:
    import atexit
    from torch.utils.data import DistributedSampler
    original, turns = DistributedSampler.set_epoch, []
    def set_epoch(self, epoch):
        if not turns:
            names = (os.environ[name] + os.environ["RANK"] for name in ("MY_TURN", "OTHER_TURN"))
            turns.extend(os.open(name, os.O_RDWR) for name in names)
            atexit.register(os.write, turns[1], b"x" * 100)
        if epoch:
            os.write(turns[1], b"x")
        os.read(turns[0], 1)
        original(self, epoch)
    DistributedSampler.set_epoch = set_epoch
    if "APART" in os.environ:
        from polyrhythm.runtime.collectives.hosts import host_map
        host_map.common_ground = lambda: ""
"""
"""Each rank waits for its side's turn before an epoch, and after it gives the turn to that rank of the other side."""


def run_sides(
    script: Path, arguments: tuple[str, ...], epochs: int, folder: Path, apart: Mapping[str, str]
) -> dict[str, list[float]]:
    """Seconds of each side's epochs after the first; `apart` are variables of both."""
    (folder / "sitecustomize.py").write_text(TURNS, encoding="utf-8")
    turns = {side: str(folder / side) for side in SIDES}
    pipes = [f"{turn}{rank}" for turn in turns.values() for rank in range(WORKERS)]
    for pipe in pipes:
        os.mkfifo(pipe)
    begin = [os.open(pipe, os.O_RDWR) for pipe in pipes[:WORKERS]]
    for turn in begin:
        os.write(turn, b"x")
    running = {}
    for side, command in SIDES.items():
        (other,) = (turn for name, turn in turns.items() if name != side)
        paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        ours = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MY_TURN": turns[side], "OTHER_TURN": other, **apart}
        job = ("--nproc-per-node", str(WORKERS), str(script), *arguments, "--epochs", str(epochs))
        running[side] = subprocess.Popen(
            [sys.executable, "-m", *command, *job], env={**os.environ, **ours}, stdout=subprocess.PIPE, text=True
        )
    texts = {side: process.communicate(timeout=900)[0] for side, process in running.items()}
    for turn in begin:
        os.close(turn)
    assert not any(process.returncode for process in running.values()), "a side has failed; it has said why"
    return {
        side: [float(found) for found in re.findall(r"([\d.]+) s$", text, re.M)][1:] for side, text in texts.items()
    }


def compare(case: Case, epochs: int, repeat: int, apart: Mapping[str, str], table: Table) -> bool:
    """Add a row; whether its bar was met."""
    repeat = max(1, repeat // case.shorter)
    arguments = *case.arguments, "--batch-size", str(case.batch_size), "--repeat", str(repeat)
    with tempfile.TemporaryDirectory() as folder:
        times = run_sides(case.script, arguments, epochs, Path(folder), apart)
    steps = math.ceil(IMAGES * repeat / (WORKERS * case.batch_size))
    step_ms = {side: 1e3 * median(seconds) / steps for side, seconds in times.items()}
    ratios = sorted(b / a for a, b in zip(times["torchrun"], times["polyrhythm"], strict=True))
    ratio, quarter = median(ratios), len(ratios) // 4
    met = ratio <= LARGEST_RATIO
    spread = f"{ratios[quarter]:.3f} .. {ratios[-quarter - 1]:.3f}"
    more_ms = (ratio - 1) * step_ms["torchrun"]
    figures = [f"{step_ms[side]:.2f}" for side in SIDES]
    table.add_row(
        case.name,
        *figures,
        f"{more_ms:+.2f}",
        f"{ratio:.3f}",
        spread,
        f"<= {LARGEST_RATIO}",
        style=None if met else "red",
    )
    return met


def main() -> bool:
    """Whether the bar was met in every case, or in those of these numbers."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("epochs", type=int, nargs="?", default=EPOCHS)
    parser.add_argument("repeat", type=int, nargs="?", default=REPEAT, help="times that an epoch goes over the images")
    parser.add_argument("cases", type=int, nargs="*", default=range(len(CASES)), help="numbers of rows")
    parser.add_argument("--gloo", action="store_true", help="let sums travel as between hosts")
    chosen = parser.parse_args()
    apart = {"APART": "1", **usual(1, {})} if chosen.gloo else {}
    table = Table("script", "torchrun ms", "polyrhythm ms", "more", "ratio", "quartiles", "bar", title="a step")
    met = [compare(CASES[case], chosen.epochs, chosen.repeat, apart, table) for case in chosen.cases]
    Console(width=110).print(table)
    return all(met)


if __name__ == "__main__":
    sys.exit(0 if main() else 1)
