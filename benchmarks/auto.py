"""Auto beside BSP and the best fixed policy on random clusters, beside BSP on real workers, and what it costs.

    python benchmarks/auto.py                         all parts
    python benchmarks/auto.py simulated               200 clusters x 5 seeds; results are kept in out/auto.jsonl, and
                                                      it goes on where it was stopped, also after a change of comments
    python benchmarks/auto.py simulated --resume FILE --minutes 30
                                                      results are kept in this file; it stops after 30 minutes, and
                                                      tells of the cases that are complete
    python benchmarks/auto.py simulated --ours auto:async --causes
                                                      where the time goes that it takes beyond the best fixed policy
    python benchmarks/auto.py simulated --clusters 20 --seeds 1 --generator other --ours auto,auto:async --worst 5
                                                      20 clusters, 1 seed, of the other generator, and the worst five
    python benchmarks/auto.py simulated --timed --ours auto
                                                      exact policies learn alike by the sample: nothing is
                                                      trained, and a job is over after 30 to 300 rounds
    sudo python benchmarks/auto.py real               12 scenarios on 2 to 8 worker processes, one of them on hosts
                                                      in network namespaces with thin links; some 30 minutes
    python benchmarks/auto.py real --only "a minute"  the scenarios whose name contains this
    python benchmarks/auto.py equal                   equal workers, fast link: auto over BSP
    sudo python benchmarks/auto.py real equal --rounds 60 --repeats 1
                                                      the same in short, to see that it runs

Exits with 1 if a bar is missed: worst ratio to BSP in time to target 0.98; median share of the best fixed exact
policy's gain 90 %, and of the best of all 80 % with `auto:async`; real workers never below 0.98 of BSP, and as fast as
the best exact policy (95 % of its pace) within 15 s of the last change of the cluster; with equal workers at most 1.01
times BSP's time.
"""

import ast
import hashlib
import json
import math
import os
import random
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import cache
from pathlib import Path
from statistics import median
from typing import NamedTuple

import msgspec
from _auto_real import ROUNDS, Curve, cases, change_s, play, settles
from _auto_real import Case as RealCase
from _causes import gap, rows, told
from _clusters import GENERATORS
from rich.console import Console
from rich.table import Table

import polyrhythm
from polyrhythm.sim import Limits, Scenario, TimingWorkload, simulate

KEPT = Path("out/auto.jsonl")
EXACT = ("bsp", "balanced")
LOCAL = ("local:4", "local:8", "local:32", "post-local:8,at=0.1", "selsync:lssr=0.8", "diloco:16")
ASYNC = ("asp", "ssp:3", "k-async:half", "switch:bsp@0.1,asp")
OURS = {"auto": EXACT, "auto:local": EXACT + LOCAL, "auto:async": EXACT + LOCAL + ASYNC}
CLUSTERS, SEEDS = 200, 5
WORTH = 1.05
"""Ratio of the best rival to BSP from which its gain is counted."""

WORST, EXACT_SHARE, ALL_SHARE, LONGEST = 0.98, 0.9, 0.8, 1.01
SETTLING_S = 15.0
"""Seconds after a change within which auto does what the best one does."""

Key = tuple[str, int, int, str]
"""Generator, cluster, seed and policy."""


class Run(NamedTuple):
    """Time and samples to the target, None if it is not reached, and the time of the whole run."""

    target_s: float | None
    target_samples: int | None
    took_s: float


class Case(NamedTuple):
    """One cluster and seed: BSP's time to the target over ours and over the best rival's; the same of a sample."""

    cell: tuple[str, int, int]
    ratio: float
    best: float
    speed: float
    rival: str


TIMED = " timed"
"""Ends a generator's name where nothing is trained."""

SAMPLES = 1437
"""Of the data set."""


def timed(scenario: Scenario, number: int) -> Scenario:
    """A job of 30 to 300 rounds on the same cluster, without gradients."""
    rounds = random.Random(f"rounds {number}").randint(30, 300)
    samples = rounds * scenario.workers * scenario.batch_size
    workload = TimingWorkload(batch_size=scenario.batch_size, samples=samples, dataset_samples=SAMPLES)
    return msgspec.structs.replace(scenario, training=None, workload=workload, limits=Limits())


def run_of(key: Key) -> tuple[Key, Run]:
    generator, number, seed, policy = key
    scenario = GENERATORS[generator.removesuffix(TIMED)](number)
    if generator.endswith(TIMED):
        scenario = timed(scenario, number)
        result = simulate(scenario, policy, seed=seed)
        return key, Run(result.duration_s, result.samples, result.duration_s)
    spec = policy.replace("half", str(-(-scenario.workers // 2)))
    result = simulate(scenario, spec, seed=seed)
    return key, Run(result.time_to_target_s, result.samples_to_target, result.duration_s)


@cache
def source_of(ours: bool) -> str:
    """A digest of what a result follows from, without comments and docstrings: it is made anew when that changes."""
    digest, folder = hashlib.sha256(), Path(polyrhythm.__file__).parent
    files = [path for part in ("core", "policies", "sim", "training") for path in (folder / part).rglob("*.py")]
    for path in sorted([*files, Path(__file__).with_name("_clusters.py")]):
        if ours or path.parent.name != "auto":
            digest.update(bare(path.read_text(encoding="utf-8")).encode())
    return digest.hexdigest()[:16]


def bare(source: str) -> str:
    """What a module does, whatever it says."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            node.body = [
                one for one in node.body if not (isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant))
            ]
    return ast.dump(tree)


def kept(file: Path) -> dict[Key, Run]:
    """Results of runs before this one, of the source as it is now."""
    if not file.exists():
        return {}
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return {tuple(key): Run(*run) for key, run, source in lines if source == source_of(key[3] in OURS)}


def runs(console: Console, keys: list[Key], options: Namespace) -> dict[Key, Run]:
    """Those that are not kept are made, and kept, as long as there is time."""
    file: Path = options.resume
    done, end_s = kept(file), time.monotonic() + 60 * options.minutes
    todo = [key for key in keys if key not in done]
    file.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(options.jobs) as pool, file.open("a", encoding="utf-8") as stream:
        for count, future in enumerate(as_completed([pool.submit(run_of, key) for key in todo]), 1):
            if time.monotonic() > end_s:
                pool.shutdown(wait=False, cancel_futures=True)
                break
            key, run = future.result()
            done[key] = run
            stream.write(json.dumps((key, run, source_of(key[3] in OURS))) + "\n")
            stream.flush()
            if count % 100 == 0:
                console.print(f"{count} of {len(todo)} runs")
    return done


def simulated(console: Console, options: Namespace) -> bool:
    """The table, the worst cases, and whether the bars are met."""
    ours = options.ours.split(",")
    rivals = list(dict.fromkeys(policy for one in ours for policy in OURS[one]))
    generator = options.generator + (TIMED if options.timed else "")
    cells = [(generator, number, seed) for number in range(options.clusters) for seed in range(options.seeds)]
    results = runs(console, [(*cell, policy) for cell in cells for policy in (*rivals, *ours)], options)
    cells = [cell for cell in cells if all((*cell, policy) in results for policy in (*rivals, *ours))]
    if not cells:
        raise SystemExit("no case is complete yet; give more --minutes, and the same --resume")
    title = f"{len(cells)} of {options.clusters} clusters x {options.seeds} ({generator})"
    table = Table(
        title, "worst / BSP", "worst at its samples", "5 %", "median / BSP", "of the best's speed", "of its gain"
    )
    worst = Table("worst", "cluster", "seed", "/ BSP", "at its samples", "best rival", "/ BSP")
    for one in ours:
        cases = sorted(compared(results, cells, one), key=lambda case: case.ratio)
        table.add_row(f"{one}, {len(cases)} cases", *row(cases))
        for case in cases[: options.worst]:
            found = f"{case.ratio:.3f}", f"{case.speed:.3f}", case.rival, f"{case.best:.3f}"
            worst.add_row(one, str(case.cell[1]), str(case.cell[2]), *found)
    console.print(table)
    if options.worst:
        console.print(worst)
    if options.causes:
        console.print(causes(results, cells, ours[0]))
    return all(passes(one, compared(results, cells, one)) for one in ours)


def causes(results: dict[Key, Run], cells: list[tuple[str, int, int]], ours: str) -> Table:
    """Where time goes that ours takes beyond the best fixed policy; its jobs are made again, for their traces."""
    table = Table(f"{ours}: why not the best", "jobs", "of the best's speed", "of what is missing", "bound")
    gaps = []
    for case in compared(results, cells, ours):
        generator, number, seed = case.cell
        best, own, bsp = (results[(*case.cell, policy)] for policy in (case.rival, ours, "bsp"))
        if best.target_s and own.target_s and bsp.target_samples:
            said = told(GENERATORS[generator](number), ours, seed)
            gaps.append(gap(said, case.rival, best.target_s, own.target_s, bsp.target_samples))
    for line in rows(gaps):
        table.add_row(*line)
    return table


def row(cases: list[Case]) -> tuple[str, ...]:
    """Of cases from the worst on."""
    ratios, slowest = [case.ratio for case in cases], min(case.speed for case in cases)
    gains = [(case.ratio - 1) / (case.best - 1) for case in cases if case.best >= WORTH]
    figures = ratios[0], slowest, ratios[len(ratios) // 20], median(ratios)
    return *map("{:.3f}".format, figures), f"{share_of(cases):.0%}", f"{median(gains):.0%}" if gains else "-"


def share_of(cases: list[Case]) -> float:
    """Of the speed of the best rival, median."""
    return median(case.ratio / case.best for case in cases)


def passes(ours: str, cases: list[Case]) -> bool:
    share = {"auto": EXACT_SHARE, "auto:async": ALL_SHARE}.get(ours, 0.0)
    return (ours != "auto" or min(case.ratio for case in cases) >= WORST) and share_of(cases) >= share


def compared(results: dict[Key, Run], cells: list[tuple[str, int, int]], ours: str) -> list[Case]:
    """Where BSP reaches the target."""
    cases = []
    for cell in cells:
        bsp, own = results[(*cell, "bsp")], results[(*cell, ours)]
        if bsp.target_s is None or bsp.target_samples is None:
            continue
        by_rival = {rival: bsp.target_s / (results[(*cell, rival)].target_s or math.inf) for rival in OURS[ours]}
        rival = max(by_rival, key=lambda one: by_rival[one])
        ratio = bsp.target_s / (own.target_s or math.inf)
        speed = ratio * (own.target_samples or 0) / bsp.target_samples
        cases.append(Case(cell, ratio, by_rival[rival], speed, rival))
    return cases


# -- real --------------------------------------------------------------------------------------------------------------

TURNS = 5
"""Pairs with equal workers."""


def real(console: Console, options: Namespace) -> bool:
    """BSP, balanced and auto, in turn and back; the median of the runs of each."""
    chosen = {name: case for name, case in cases(options.rounds).items() if options.only in name}
    if not chosen:
        raise SystemExit(f"--only {options.only!r} is in the name of none of: {', '.join(cases(options.rounds))}")
    if any(case.hosts for case in chosen.values()) and os.geteuid() != 0:
        raise SystemExit("a scenario with hosts needs root for its network namespaces; run with sudo, or give --only")
    heads = "auto / BSP", "best", "auto / best", "as the best after, s"
    table = Table("real workers", "BSP, samples/s", "auto, samples/s", *heads)
    good = True
    for name, case in chosen.items():
        row, passed = compared_on_workers(name, case, options.repeats)
        console.print(*row, sep=" | ")
        table.add_row(*row)
        good &= passed
    console.print(table)
    return good


def compared_on_workers(name: str, case: RealCase, repeats: int) -> tuple[tuple[str, ...], bool]:
    """A row of the table, and whether auto meets its bars in it."""
    curves: dict[str, list[Curve]] = {policy: [] for policy in (*EXACT, "auto")}
    for turn in range(min(repeats, case.repeats)):
        for policy in list(curves) if turn % 2 == 0 else reversed(curves):
            curves[policy].append(play(name, case, policy))
    bsp, balanced, auto = (median(curve.rate for curve in each) for each in curves.values())
    best = "bsp" if bsp >= balanced else "balanced"
    pairs = zip(curves["auto"], curves[best], strict=True)
    settled_s = median(settles(ours, rival, change_s(case.scenario)) for ours, rival in pairs)
    ratio = auto / bsp
    figures = f"{bsp:.0f}", f"{auto:.0f}", f"{ratio:.3f}", best, f"{auto / max(bsp, balanced):.3f}", f"{settled_s:.1f}"
    return (name, *figures), ratio >= WORST and settled_s <= SETTLING_S


def equal(console: Console, options: Namespace) -> bool:
    """Equal workers and a fast link, in turn."""
    case, ratios = cases(options.rounds)["4 workers, equal"], []
    for turn in range(TURNS):
        order = ("bsp", "auto") if turn % 2 else ("auto", "bsp")
        rates = {policy: play("equal", case, policy).rate for policy in order}
        ratios.append(rates["bsp"] / rates["auto"])
        console.print(f"pair {turn + 1}: {ratios[-1]:.4f}")
    table = Table("equal workers", "auto / BSP, time", "least", "most")
    table.add_row(f"median of {TURNS}", f"{median(ratios):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}")
    console.print(table)
    return median(ratios) <= LONGEST


PARTS: dict[str, Callable[[Console, Namespace], bool]] = {
    "simulated": simulated,
    "real": real,
    "equal": equal,
}


def main(arguments: list[str]) -> int:
    parser = ArgumentParser(prog="auto.py")
    parser.add_argument("parts", nargs="*", metavar="PART", help=", ".join(PARTS) + "; none: all")
    parser.add_argument("--clusters", type=int, default=CLUSTERS)
    parser.add_argument("--seeds", type=int, default=SEEDS)
    parser.add_argument("--generator", choices=GENERATORS, default="one")
    parser.add_argument("--timed", action="store_true", help="train nothing, and simulate the time of exact policies")
    parser.add_argument("--ours", default=",".join(OURS), help="comma between them")
    parser.add_argument("--jobs", type=int, default=2, help="processes of the simulated part")
    parser.add_argument("--resume", type=Path, default=KEPT, help="file in which results are kept")
    parser.add_argument("--minutes", type=float, default=math.inf, help="of the simulated part; it goes on from there")
    parser.add_argument("--causes", action="store_true", help="where the first of --ours is behind the best")
    parser.add_argument("--worst", type=int, default=0, help="how many of the worst cases of each are shown")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="of a job of real workers")
    parser.add_argument("--only", default="", help="real scenarios whose name contains this")
    parser.add_argument("--repeats", type=int, default=2, help="runs of each policy in each real scenario")
    options = parser.parse_args(arguments)
    console = Console(width=140)
    passed = [PARTS[name](console, options) for name in options.parts or PARTS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
