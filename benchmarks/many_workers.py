"""Many real workers on one host: a job starts, trains, goes over to ASP and to local SGD while it runs, and ends.

The script is `examples/train_digits.py`. ``many_workers.py [WORKERS]``, 32 if none are given; exits with 1 if the job
fails, is at its end not under the policy that it was switched to, or takes more than 60 seconds. As root it comes
before all other work on the machine.
"""

import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from _priority import come_first
from rich.console import Console
from rich.table import Table

WORKERS, EPOCHS, LONGEST_S = 32, 30, 60.0
SWITCHES = {"bsp": "asp", "asp": "local:8"}
"""What the job goes over to, once an epoch has ended under this."""

POLYRHYTHM = str(Path(sys.executable).parent / "polyrhythm")
SCRIPT = str(Path(__file__).parents[1] / "examples" / "train_digits.py")
EPOCH = re.compile(r"epoch \d+: (?P<policy>\S+), accuracy (?P<accuracy>[\d.]+)")


def milestones(workers: int, job: str) -> Iterator[tuple[str, str, str]]:
    """What has happened, under which policy, and how good the model is: a line for each policy, and one for the end."""
    words = [POLYRHYTHM, "run", "--no-ui", "--job", job, "--nproc-per-node", str(workers), SCRIPT]
    asked, policy, accuracy = set[str](), "-", "-"
    with subprocess.Popen(
        [*words, "--epochs", str(EPOCHS), "--batch-size", "4"], stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        for ended in filter(None, map(EPOCH.match, run.stdout)):
            policy, accuracy = ended["policy"].rstrip(","), ended["accuracy"]
            if policy not in asked:
                asked.add(policy)
                yield "first epoch has ended", policy, accuracy
                if policy in SWITCHES:
                    subprocess.run(
                        [POLYRHYTHM, "ctl", job, "switch", SWITCHES[policy]], check=True, stdout=subprocess.PIPE
                    )
    yield "job has ended" if run.returncode == 0 else f"job has failed ({run.returncode})", policy, accuracy


def main(workers: int) -> bool:
    """Whether the bars were met."""
    table, begun_s = Table(f"{workers} workers", "policy", "accuracy", "after"), time.perf_counter()
    for what, policy, accuracy in milestones(workers, f"many-{workers}"):
        table.add_row(what, policy, accuracy, f"{time.perf_counter() - begun_s:.1f} s")
    Console().print(table)
    return what == "job has ended" and policy == "local:8" and time.perf_counter() - begun_s <= LONGEST_S


if __name__ == "__main__":
    come_first()
    sys.exit(not main(int(sys.argv[1]) if sys.argv[1:] else WORKERS))
