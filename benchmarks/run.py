"""Run benchmarks, each as a process of its own, and fail if one misses its bar: ``run.py [NAME ...]``, or all.

All are those that need no arguments.
"""

import subprocess
import sys
import time
from pathlib import Path

from polyrhythm.errors import did_you_mean

FOLDER = Path(__file__).parent
BENCHMARKS = {path.stem: path for path in sorted(FOLDER.glob("[!_]*.py")) if path != Path(__file__)}

WITH_ARGUMENTS = ("knee", "public_scripts")


def passes(name: str) -> bool:
    """Run one benchmark; its table goes straight to the terminal, its exit status says whether it met its bars."""
    print(f"\n== {name}", flush=True)
    start = time.perf_counter()
    status = subprocess.run([sys.executable, BENCHMARKS[name]], check=False).returncode
    print(f"{name}: {'met its bars' if status == 0 else 'MISSED'} in {time.perf_counter() - start:.0f} s", flush=True)
    return status == 0


def main(names: list[str]) -> str | None:
    """What went wrong, in one line."""
    for name in names:
        if name not in BENCHMARKS:
            return f"unknown benchmark {name!r}: {did_you_mean(name, BENCHMARKS)}"
    chosen = names or [name for name in BENCHMARKS if name not in WITH_ARGUMENTS]
    missed = [name for name in chosen if not passes(name)]
    return f"\nmissed: {', '.join(missed)}" if missed else None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
