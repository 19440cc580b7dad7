"""Run public scripts as they are: ``python benchmarks/public_scripts.py FOLDER [NAME ...] [--policies bsp,asp]``.

Each is fetched into FOLDER at the commit that `public_scripts.toml` says (or found there already), its data are made,
and it runs under torchrun and under each policy on two workers. A row is printed for each: exit status, seconds, the
last number after "loss". The policy ``switch`` begins with bsp and is switched to asp and back while it runs.
"""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import time
import tomllib
import uuid
from pathlib import Path
from typing import Any

POLICIES = "torchrun,bsp,asp,local:8,diloco:16,selsync,switch"
LIMIT_S = 600


def fetch(row: dict[str, Any], folder: Path) -> Path:
    """The script's repository at its commit, with its data."""
    home = folder / str(row["repository"]).partition("/")[2]
    if not home.exists():
        subprocess.run(["git", "clone", "--quiet", f"https://github.com/{row['repository']}", home], check=True)
        subprocess.run(["git", "-C", home, "checkout", "--quiet", row["commit"]], check=True)
    for code in (row.get("data", ""), row.get("setup", "")):
        made = home / f".made-{hashlib.sha256(code.encode()).hexdigest()[:8]}"
        if code and not made.exists():
            subprocess.run([sys.executable, "-c", code], cwd=home, check=True)
            made.touch()
    return home


def command_of(row: dict[str, Any], policy: str, job: str) -> list[str]:
    stand_in = ["-m", "polyrhythm.testing.cuda"] if row.get("cuda") else []
    script = [*stand_in, *row["command"].split()]
    if policy == "torchrun" and row.get("by") == "python":
        return [sys.executable, *script]
    if policy == "torchrun":
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    first = "bsp" if policy == "switch" else policy
    ours = [sys.executable, "-m", "polyrhythm", "run", "--standalone", "--nproc-per-node", "2", "--policy", first]
    return [*ours, "--job", job, *script]


def switch_when_it_runs(job: str, process: subprocess.Popen[bytes], environment: dict[str, str], log: Path) -> int:
    """Switches that were taken: to asp and back, once the first phase has begun."""
    done = 0
    while process.poll() is None and b"phase 1:" not in log.read_bytes():
        time.sleep(0.2)
    for policy in ("asp", "bsp"):
        ask = [sys.executable, "-m", "polyrhythm", "ctl", job, "switch", policy]
        while process.poll() is None:
            time.sleep(1)
            if subprocess.run(ask, env=environment, capture_output=True, check=False).returncode == 0:
                done += 1
                time.sleep(3)
                break
    return done


def run(name: str, row: dict[str, Any], home: Path, policy: str) -> str:
    job, log = f"public-{uuid.uuid4().hex[:8]}", home / f"log-{name}-{policy.replace(':', '-')}.txt"
    for path in row.get("remove", ()):  # a script may go on from what another run has left
        subprocess.run(["rm", "-rf", path], cwd=home, check=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **row.get("env", {})}
    own = [str((home / row["path"]).resolve())] if "path" in row else []
    environment["PYTHONPATH"] = os.pathsep.join([*own, *paths()])
    start = time.monotonic()
    with (
        log.open("wb") as out,
        subprocess.Popen(
            command_of(row, policy, job),
            cwd=home / row.get("folder", "."),
            env=environment,
            stdout=out,
            stderr=subprocess.STDOUT,
        ) as process,
    ):
        switches = switch_when_it_runs(job, process, environment, log) if policy == "switch" else None
        try:
            status = str(process.wait(LIMIT_S))
        except subprocess.TimeoutExpired:
            process.terminate()
            status = "timeout"
    losses = re.findall(r"(?i)loss[^0-9]{0,20}([0-9]+\.[0-9]+(?:e[+-][0-9]+)?)", log.read_text(errors="replace"))
    tail = f", {switches} switches" if switches is not None else ""
    return f"exit {status}, {time.monotonic() - start:.0f} s, last loss {losses[-1] if losses else '-'}{tail}"


def paths() -> list[str]:
    return [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--policies", default=POLICIES)
    args = parser.parse_args()
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    data = rows.pop("data")
    for name in args.names or rows:
        rows[name]["data"] = data.get(rows[name].get("data"), "")
        home = fetch(rows[name], args.folder)
        for policy in args.policies.split(","):
            print(f"{name:16} {policy:10} {run(name, rows[name], home, policy)}", flush=True)


if __name__ == "__main__":
    main()
