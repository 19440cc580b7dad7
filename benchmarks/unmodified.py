"""An unmodified script under ``polyrhythm run --policy bsp`` against torchrun alone: its epochs after the first.

Both jobs live at the same time and take turns, one epoch each, so that each pair of epochs sees the same load of the
machine. The script is examples/train_ddp.py as it is: that it waits for its turn is the doing of a file that Python
itself reads when it starts (sitecustomize), the same on both sides. Exits with 1 if the bar is missed.

python benchmarks/unmodified.py                 # 30 pairs of epochs, each 10 times over the images
python benchmarks/unmodified.py 13 2 0          # 12 pairs of epochs of a fifth of that, only of the first case
"""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from statistics import median

from rich.console import Console
from rich.table import Table

LARGEST_RATIO, EPOCHS, REPEAT, WORKERS = 1.03, 31, 10, 2
SCRIPT = Path(__file__).parent.parent / "examples" / "train_ddp.py"
SIDES = {
    "torchrun": ("torch.distributed.run", "--standalone"),
    "polyrhythm": ("polyrhythm", "run", "--policy", "bsp"),
}
CASES = {
    "5 k parameters": ("--hidden", "64"),
    "0.8 M parameters": ("--hidden", "11000"),
    "5 k, forked loaders": ("--hidden", "64", "--workers", "1"),
    "0.8 M, batches of 250": ("--hidden", "11000", "--batch-size", "250"),
}

TURNS = """
import os
if rank := os.environ.get("RANK"):
    from torch.utils.data import DistributedSampler
    mine, other = (os.open(os.environ[name] + rank, os.O_RDWR) for name in ("MY_TURN", "OTHER_TURN"))
    original = DistributedSampler.set_epoch
    def set_epoch(self, epoch):
        if epoch:
            os.write(other, b"x")
        os.read(mine, 1)
        original(self, epoch)
    DistributedSampler.set_epoch = set_epoch
    import atexit
    atexit.register(os.write, other, b"x" * 100)
"""
"""Each rank waits for its side's turn before an epoch, and behind it gives the turn to that rank of the other side."""


def run_sides(arguments: tuple[str, ...], epochs: int, folder: Path) -> dict[str, list[float]]:
    """Seconds of each side's epochs after the first."""
    (folder / "sitecustomize.py").write_text(TURNS, encoding="utf-8")
    turns = {side: folder / side for side in SIDES}
    for side in SIDES:
        for rank in range(WORKERS):
            os.mkfifo(folder / f"{side}{rank}")
    begin = [os.open(folder / f"{next(iter(SIDES))}{rank}", os.O_RDWR) for rank in range(WORKERS)]
    for turn in begin:
        os.write(turn, b"x")
    running = {}
    for side, command in SIDES.items():
        (other,) = (turn for name, turn in turns.items() if name != side)
        paths = os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
        ours = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "MY_TURN": str(turns[side]), "OTHER_TURN": str(other)}
        job = ("--nproc-per-node", str(WORKERS), str(SCRIPT), "--epochs", str(epochs), *arguments)
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


def main(epochs: int = EPOCHS, repeat: int = REPEAT, *numbers: int) -> bool:
    """Whether the bar was met in every case, or in those of these numbers."""
    table = Table("script", "workers", "torchrun s", "polyrhythm s", "ratio", "quartiles", "bar")
    met = True
    for name, arguments in [list(CASES.items())[number] for number in numbers or range(len(CASES))]:
        with tempfile.TemporaryDirectory() as folder:
            times = run_sides((*arguments, "--repeat", str(repeat)), epochs, Path(folder))
        ratios = sorted(b / a for a, b in zip(times["torchrun"], times["polyrhythm"], strict=True))
        ratio, quarter = median(ratios), len(ratios) // 4
        met &= ratio <= LARGEST_RATIO
        seconds = [f"{median(times[side]):.3f}" for side in SIDES]
        spread = f"{ratios[quarter]:.3f} .. {ratios[-quarter - 1]:.3f}"
        style = None if ratio <= LARGEST_RATIO else "red"
        table.add_row(name, str(WORKERS), *seconds, f"{ratio:.3f}", spread, f"<= {LARGEST_RATIO}", style=style)
    Console().print(table)
    return met


if __name__ == "__main__":
    sys.exit(0 if main(*map(int, sys.argv[1:])) else 1)
