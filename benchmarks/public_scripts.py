"""Run public scripts as they are: ``python benchmarks/public_scripts.py FOLDER [NAME ...] [--policies bsp,asp]``.

Each is fetched into FOLDER at the commit that `public_scripts.toml` says (or found there already), its data are made,
and it runs without us and under each policy on two workers. The policy ``switch`` begins with bsp and is switched to
asp and back while it runs. What came of it is kept in FOLDER/outcomes; ``--markdown`` prints the tables of the guide
from there and runs nothing.

A script with ranks is compared with torchrun. One for a single process is compared with itself on one process, with the
samples a step of both workers, where its command line can say that (`alone`). A script that sets no seed runs several
times (`runs`), which gives the noise of its seed.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import time
import tomllib
import uuid
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

BASELINE = "baseline"
POLICIES = (BASELINE, "bsp", "asp", "local:8", "diloco:16", "selsync", "switch")
LIMIT_S = 600
LOSS = r"(?i)loss[^0-9\n]{0,20}([0-9]+\.[0-9]+(?:e[+-]?[0-9]+)?|nan|inf)\b"
"""What follows the word loss, unless a row says otherwise."""

Row = dict[str, Any]
Outcome = dict[str, Any]


def fetch(row: Row, folder: Path) -> Path:
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


def command_of(row: Row, policy: str, job: str) -> list[str]:
    stand_in = ["-m", "polyrhythm.testing.cuda"] if row.get("cuda") else []
    script = [*stand_in, *shlex.split(row["command"])]
    if policy == BASELINE and "alone" in row:
        return [sys.executable, *(row["alone"].get(word, word) for word in script)]
    if policy == BASELINE:
        return [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *script]
    first = "bsp" if policy == "switch" else policy
    ours = [sys.executable, "-m", "polyrhythm", "run", "--standalone", "--nproc-per-node", "2", "--policy", first]
    return [*ours, "--job", job, *script]


def switch_both_ways(job: str, process: subprocess.Popen[bytes], log: Path) -> int:
    """To asp and back, each once the phase before has begun; how many were taken before the script was over."""
    from polyrhythm.errors import PolyrhythmError
    from polyrhythm.runtime.launch import control_client

    for phase, policy in enumerate(("asp", "bsp", ""), 1):
        while f"phase {phase}:".encode() not in log.read_bytes():
            if process.poll() is not None:
                return max(0, phase - 2)
            time.sleep(0.05)
        if policy:
            time.sleep(0.2)
            try:
                control_client.switch(control_client.at(job), policy)
            except PolyrhythmError as error:
                if process.poll() is None:
                    print(f"the switch to {policy} failed: {error}", file=sys.stderr)
                return phase - 1
    return 2


def run(name: str, row: Row, home: Path, policy: str) -> Outcome:
    job, log = f"public-{uuid.uuid4().hex[:8]}", home / f"log-{name}-{policy.replace(':', '-')}.txt"
    for path in row.get("remove", ()):  # a script may go on from what another run has left
        subprocess.run(["rm", "-rf", path], cwd=home, check=True)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **row.get("env", {})}
    own = [str((home / row["path"]).resolve())] if "path" in row else []
    environment["PYTHONPATH"] = os.pathsep.join([*own, *paths()])
    start, switches = time.monotonic(), 2
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
        try:
            if policy == "switch":
                switches = switch_both_ways(job, process, log)
            status = str(process.wait(LIMIT_S))
        except subprocess.TimeoutExpired:
            process.terminate()
            status = "time limit"
    said = log.read_text(errors="replace")
    lines = re.findall(r"polyrhythm: (.+)", said) if status == "2" else []
    return {
        "status": status,
        "seconds": round(time.monotonic() - start),
        "losses": [float(found) for found in re.findall(row.get("loss", LOSS), said)],
        "switches": switches,  # of the two that are asked for, where any are
        "refusal": lines[-1] if lines else "",
    }


def paths() -> list[str]:
    return [str(Path(path).resolve()) for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]


def end_of(losses: Sequence[float]) -> tuple[float, float]:
    """Mean and standard deviation of the last fifth of the losses, of three at least.

    >>> end_of([9.0, 1.0, 2.0, 3.0])
    (2.0, 1.0)
    """
    last = losses[-max(3, len(losses) // 5) :]
    return mean(last), stdev(last) if len(last) > 1 else 0.0


def wanted_of(baseline: Outcome) -> tuple[float, float]:
    """Mean of the ends of the runs without us, and how far they scatter, within a run or from run to run.

    >>> wanted_of({"losses": [9.0, 1.0, 2.0, 3.0], "ends": [2.0, 6.0]})
    (4.0, 2.8284271247461903)
    """
    value, spread = end_of(baseline["losses"])
    ends = baseline.get("ends", [value])
    return mean(ends), max(spread, stdev(ends) if len(ends) > 1 else 0.0)


def cell(outcome: Outcome | None, baseline: Outcome | None) -> str:
    """What the table says of a run, in words that the guide explains.

    >>> base = {"status": "0", "losses": [3.0, 2.0, 1.0, 1.1, 0.9]}
    >>> cell(base, None), cell(base, base)
    ('1.000 +- 0.100', 'equal')
    >>> cell({"status": "0", "losses": [3.0, 2.2, 1.1, 1.2, 1.0]}, base)
    '1.100'
    >>> cell({"status": "0", "losses": [3.0, 3.1, 3.0, 3.1, 3.0]}, base)
    '3.033 (apart)'
    >>> cell({"status": "2", "losses": []}, base), cell(None, base)
    ('refused', 'not run')
    """
    if outcome is None:
        return "not run"
    if outcome["status"] != "0":
        return "refused" if outcome["status"] == "2" else f"status {outcome['status']}"
    losses, lacks = outcome["losses"], {0: ", not switched", 1: ", one way only"}.get(outcome.get("switches", 2), "")
    if not losses:
        return f"ends{lacks}"
    value, spread = end_of(losses) if baseline else wanted_of(outcome)
    if baseline is None:
        return f"{value:.4g} +- {spread:.2g}" if value >= 1e3 else f"{value:.3f} +- {spread:.3f}"
    if sorted(losses) == sorted(baseline["losses"]):
        return f"equal{lacks}"
    figure = f"{value:.4g}" if value >= 1e3 else f"{value:.3f}"
    if not baseline["losses"] or baseline["status"] != "0":
        return figure + lacks
    wanted, noise = wanted_of(baseline)
    near = abs(value - wanted) <= 2 * max(spread, noise)
    return figure + ("" if near else " (apart)") + lacks


def markdown(rows: dict[str, Row], results: dict[str, dict[str, Outcome]]) -> str:
    """The table of docs/guides/scripts.md: rows of which something was run; below it what is refused, with its line."""
    head = ["row", "class", "repository, commit", "without us", *POLICIES[1:]]
    lines = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    refusals: dict[str, list[str]] = {}
    for name, row in rows.items():
        found = results.get(name, {})
        if not found.keys() - {BASELINE}:
            continue
        baseline = found.get(BASELINE)
        cells = [cell(baseline, None), *(cell(found.get(policy), baseline) for policy in POLICIES[1:])]
        source = f"{row['repository']} {row['commit'][:7]}"
        kind = row["class"] + (", one process" if "alone" in row and "one process" not in row["class"] else "")
        lines.append("| " + " | ".join([f"`{name}`", kind, source, *cells]) + " |")
        for policy in POLICIES[1:]:
            if reason := found.get(policy, {}).get("refusal"):
                refusals.setdefault(f"`{name}`: {reason}", []).append(policy)
    said = [f"- {', '.join(policies)}: {line}" for line, policies in refusals.items()]
    return "\n".join([*lines, "", *said])


def counts(rows: dict[str, Row], results: dict[str, dict[str, Outcome]]) -> str:
    """How many rows have all cells, and what those say.

    >>> run = {"status": "0", "losses": [1.0], "switches": 2}
    >>> counts({"a": {}, "b": {}}, {"a": dict.fromkeys(POLICIES, run), "b": {"bsp": run}})
    '2 rows; 1 with all cells; 1 of them end under each policy, 1 also switched both ways, 1 also with a loss'
    """
    whole = [found for name in rows if len(found := results.get(name, {})) == len(POLICIES)]
    end = [found for found in whole if all(found[policy]["status"] == "0" for policy in POLICIES[1:])]
    switched = [found for found in end if found["switch"]["switches"] == 2]
    logged = [found for found in switched if all(found[policy]["losses"] for policy in POLICIES)]
    return (
        f"{len(rows)} rows; {len(whole)} with all cells; {len(end)} of them end under each policy, "
        f"{len(switched)} also switched both ways, {len(logged)} also with a loss"
    )


def kept(folder: Path) -> dict[str, dict[str, Outcome]]:
    """What came of each row under each policy."""
    found: dict[str, dict[str, Outcome]] = {}
    for file in sorted((folder / "outcomes").glob("*/*.json")):
        found.setdefault(file.parent.name, {})[file.stem] = json.loads(file.read_text(encoding="utf-8"))
    return found


def keep(folder: Path, name: str, policy: str, outcome: Outcome) -> None:
    file = folder / "outcomes" / name / f"{policy}.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(outcome), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--policies", default=",".join(POLICIES))
    parser.add_argument("--missing", action="store_true", help="only what has no outcome yet")
    parser.add_argument("--markdown", action="store_true", help="print the tables and run nothing")
    args = parser.parse_args()
    rows = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    data = rows.pop("data")
    if args.markdown:
        found = kept(args.folder)
        print(markdown(rows, found), counts(rows, found), sep="\n\n")
        return
    for name in args.names or rows:
        row = {**rows[name], "data": data.get(rows[name].get("data"), "")}
        home = fetch(row, args.folder)
        for policy in args.policies.split(","):
            if args.missing and policy in kept(args.folder).get(name, {}):
                continue
            outcome = run(name, row, home, policy)
            if policy == BASELINE and "runs" in row:
                again = [run(name, row, home, policy) for _ in range(row["runs"] - 1)]
                outcome["ends"] = [end_of(one["losses"])[0] for one in (outcome, *again)]
            keep(args.folder, name, policy, outcome)
            baseline = None if policy == BASELINE else kept(args.folder)[name].get(BASELINE)
            print(f"{name:18} {policy:10} {outcome['seconds']:4} s  {cell(outcome, baseline)}", flush=True)


if __name__ == "__main__":
    main()
