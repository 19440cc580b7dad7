"""What it costs to be seen: a job of four workers with steps of 15 ms, watched in every way, and not at all.

Watched is: a page that is open (its requests are made here, twice a second, as the page makes them), metrics that are
scraped each second, TensorBoard's files, and events. Both kinds of job run in turn, and each pair gives one ratio of
their times. Workers wait most of a step instead of computing, so that two cores can play four workers; what following
a job takes of the processor is taken from them all the same. ``live_cost.py [PAIRS]``; exits with 1 if the bar is
missed.
"""

import json
import re
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from rich.console import Console
from rich.table import Table

PAIRS, WORKERS = 9, 4
WARM_UP, STEPS, STEP_MS = 40, 400, 15.0
LARGEST_COST = 0.005
"""Of the throughput."""

SCRIPT = """
import sys, time
import torch
import polyrhythm

torch.manual_seed(0)
warm_up, steps, step_s = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]) / 1000
model = torch.nn.Linear(64, 10)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
data = torch.utils.data.TensorDataset(torch.randn(4 * (warm_up + steps), 64))
with polyrhythm.session(model, optimizer) as session:
    for number, (x,) in enumerate(session.loader(data, batch_size=1)):
        if number == warm_up:
            begun_s = time.perf_counter()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        time.sleep(step_s)
        optimizer.step()
    if session.rank == 0:
        print("took", (time.perf_counter() - begun_s) / (number + 1 - warm_up), flush=True)
"""


def run(folder: Path, watched: bool) -> float:
    """Seconds of a step of rank 0."""
    script = folder / "train.py"
    script.write_text(SCRIPT, encoding="utf-8")
    files = "--tensorboard", str(folder / "board"), "--events", str(folder / "events.jsonl")
    flags = ("--ui", "--metrics-port", "0", *files) if watched else ("--no-ui",)
    job = ("--nproc-per-node", str(WORKERS), "--policy", "bsp", *flags, str(script))
    words = [sys.executable, "-m", "polyrhythm", "run", *job, str(WARM_UP), str(STEPS), str(STEP_MS)]
    over = threading.Event()
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        lookers = [threading.Thread(target=look, args=(*each, over)) for each in addresses(process.stderr, watched)]
        for looker in lookers:
            looker.start()
        complaints: list[str] = []
        reader = threading.Thread(target=complaints.extend, args=(process.stderr,))
        reader.start()
        said = process.stdout.read()
        reader.join()
    over.set()
    for looker in lookers:
        looker.join()
    if "took " not in said:
        sys.exit("".join(complaints))
    return float(said.split("took ")[1])


def addresses(lines: object, watched: bool) -> list[tuple[str, float]]:
    """What is looked at, and how often."""
    found: list[tuple[str, float]] = []
    while watched and len(found) < 2:
        line = next(iter(lines))  # type: ignore[call-overload]
        if page := re.search(r"http://\S+/$", line):
            found.append((page[0] + "state?after={after}", 0.5))
        elif metrics := re.search(r"http://\S+/metrics$", line):
            found.append((metrics[0], 1.0))
    return found


def look(address: str, period_s: float, over: threading.Event) -> None:
    """Ask again and again; the page asks for the frames that it does not have yet."""
    after = 0
    while not over.wait(period_s):
        try:
            with urllib.request.urlopen(address.format(after=after), timeout=5.0) as answer:
                text = answer.read()
        except OSError:
            return
        if "{after}" in address and (frames := json.loads(text)["frames"]):
            after = frames[-1]["number"]


def main(pairs: int) -> bool:
    """Whether the bar was met."""
    ratios, steps_ms = [], {True: [0.0] * pairs, False: [0.0] * pairs}
    for pair in range(pairs):
        with TemporaryDirectory() as folder:
            for watched in (True, False) if pair % 2 else (False, True):
                steps_ms[watched][pair] = 1000 * run(Path(folder), watched)
        ratios.append(steps_ms[True][pair] / steps_ms[False][pair] - 1)
    table = Table("job", "step, median")
    for watched in (False, True):
        table.add_row("watched in every way" if watched else "not watched", f"{median(steps_ms[watched]):.3f} ms")
    cost = median(ratios)
    spread = f"from {min(ratios):+.2%} to {max(ratios):+.2%}"
    Console().print(table, f"cost: {cost:+.2%}, median of {pairs} pairs, {spread}; bar {LARGEST_COST:.1%}")
    return cost <= LARGEST_COST


if __name__ == "__main__":
    sys.exit(not main(int(sys.argv[1]) if len(sys.argv) > 1 else PAIRS))
