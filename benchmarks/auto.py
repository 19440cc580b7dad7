"""Auto beside BSP and the best fixed policy on random clusters, beside BSP on real workers, and what it costs.

    python benchmarks/auto.py                         all parts
    python benchmarks/auto.py simulated               200 clusters x 5 seeds; results are kept in out/auto.jsonl, and
                                                      it goes on where it was stopped
    python benchmarks/auto.py simulated 20 1 other    20 clusters, 1 seed, of the other generator
    python benchmarks/auto.py real                    12 scenarios on 2 to 8 worker processes
    python benchmarks/auto.py equal                   equal workers, fast link: auto over BSP

Exits with 1 if a bar is missed: worst ratio to BSP in time to target 0.98; median share of the best fixed exact
policy's gain 90 %, and of the best of all 80 % with `auto:async`; real workers never below 0.98 of BSP; with equal
workers at most 1.01 times BSP's time.
"""

import json
import math
import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from statistics import median

from _clusters import GENERATORS
from rich.console import Console
from rich.table import Table

from polyrhythm.cli.local import emulations
from polyrhythm.emulation.local import LocalRun, run_local
from polyrhythm.policies import parse_policy
from polyrhythm.sim import Compute, Device, Faults, Scenario, Straggler, simulate
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task

KEPT = Path("out/auto.jsonl")
EXACT = ("bsp", "balanced")
LOCAL = ("local:4", "local:8", "local:32", "post-local:8,at=0.1", "selsync:lssr=0.8", "diloco:16")
ASYNC = ("asp", "ssp:3", "k-async:half", "switch:bsp@0.1,asp")
OURS = {"auto": EXACT, "auto:local": EXACT + LOCAL, "auto:async": EXACT + LOCAL + ASYNC}
CLUSTERS, SEEDS = 200, 5
WORST, EXACT_SHARE, ALL_SHARE, LONGEST = 0.98, 0.9, 0.8, 1.01

Key = tuple[str, int, int, str]
"""Generator, cluster, seed and policy."""


def seconds_of(key: Key) -> tuple[Key, float | None, float]:
    """Time to the target, None if it is not reached, and that of the whole run."""
    generator, number, seed, policy = key
    scenario = GENERATORS[generator](number)
    spec = policy.replace("half", str(-(-scenario.workers // 2)))
    result = simulate(scenario, spec, seed=seed)
    return key, result.time_to_target_s, result.duration_s


def kept() -> dict[Key, tuple[float | None, float]]:
    """Results of runs before this one."""
    if not KEPT.exists():
        return {}
    lines = (json.loads(line) for line in KEPT.read_text(encoding="utf-8").splitlines())
    return {tuple(line["key"]): (line["target_s"], line["took_s"]) for line in lines}


def runs(console: Console, keys: list[Key], jobs: int = 2) -> dict[Key, tuple[float | None, float]]:
    """Those that are not kept are made, and kept."""
    done = kept()
    todo = [key for key in keys if key not in done]
    KEPT.parent.mkdir(exist_ok=True)
    with ProcessPoolExecutor(jobs) as pool, KEPT.open("a", encoding="utf-8") as stream:
        for count, future in enumerate(as_completed([pool.submit(seconds_of, key) for key in todo]), 1):
            key, target_s, took_s = future.result()
            done[key] = target_s, took_s
            stream.write(json.dumps({"key": key, "target_s": target_s, "took_s": took_s}) + "\n")
            stream.flush()
            if count % 100 == 0:
                console.print(f"{count} of {len(todo)} runs")
    return done


def simulated(console: Console, clusters: int = CLUSTERS, seeds: int = SEEDS, generator: str = "one") -> bool:
    fixed = list(dict.fromkeys(policy for policies in OURS.values() for policy in policies))
    cells = [(generator, number, seed) for number in range(clusters) for seed in range(seeds)]
    results = runs(console, [(*cell, policy) for cell in cells for policy in (*fixed, *OURS)])
    table = Table(
        f"{clusters} clusters x {seeds}", "reached by BSP", "worst / BSP", "5 %", "median / BSP", "of the best's gain"
    )
    good = True
    for ours, rivals in OURS.items():
        ratios, shares = compared(results, cells, ours, rivals)
        share, worst = median(shares), min(ratios)
        twentieth = sorted(ratios)[len(ratios) // 20]
        table.add_row(
            ours, f"{len(ratios)}", f"{worst:.3f}", f"{twentieth:.3f}", f"{median(ratios):.2f}", f"{share:.0%}"
        )
        if ours == "auto":
            good &= worst >= WORST and share >= EXACT_SHARE
        if ours == "auto:async":
            good &= share >= ALL_SHARE
    console.print(table)
    return good


def compared(
    results: dict[Key, tuple[float | None, float]],
    cells: list[tuple[str, int, int]],
    ours: str,
    rivals: tuple[str, ...],
) -> tuple[list[float], list[float]]:
    """BSP's time over ours, and our gain over that of the best rival in hindsight, where BSP reaches the target."""
    ratios, shares = [], []
    for cell in cells:
        bsp_s = results[(*cell, "bsp")][0]
        if bsp_s is None:
            continue
        target_s = results[(*cell, ours)][0]
        ratio = bsp_s / target_s if target_s else 0.0
        best = max(bsp_s / (results[(*cell, rival)][0] or float("inf")) for rival in rivals)
        ratios.append(ratio)
        shares.append(ratio / best)
    return ratios, shares


# -- real --------------------------------------------------------------------------------------------------------------

STEP_S = 0.03


def scenarios() -> dict[str, Scenario]:
    """Twelve small clusters that two cores can play, because a step is a sleep."""
    slow, later = (
        Straggler(workers=[1], start_step=150, slowdown=4.0),
        Straggler(workers=[0], start_s=8.0, slowdown=3.0),
    )
    goes = [Straggler(workers=[start % 3], start_step=start, steps=60, slowdown=4.0) for start in (40, 160, 280)]
    turns = [Straggler(workers=[turn % 4], start_step=8 * turn, steps=8, slowdown=3.0) for turn in range(60)]
    normal, chance = Compute(distribution="normal", deviation=0.1), Compute(distribution="log-normal", deviation=0.5)
    return {
        "2 workers, equal": played([1.0] * 2, normal),
        "2 workers, one 2x": played([1.0, 2.0], normal),
        "3 workers, come and go": played([1.0] * 3, normal, goes),
        "4 workers, equal": played([1.0] * 4, normal),
        "4 workers, one 4x": played([1.0] * 3 + [4.0], normal),
        "4 workers, one 1.2x": played([1.0] * 3 + [1.2], normal),
        "4 workers, one 4x after a while": played([1.0] * 4, normal, [slow]),
        "4 workers, in turn": played([1.0] * 4, normal, turns),
        "4 workers, by chance": played([1.0] * 4, chance),
        "4 workers, thin links, one 3x later": played([1.0] * 4, normal, [later], gbps=0.02),
        "6 workers, two generations": played([1.0] * 3 + [2.5] * 3, normal),
        "8 workers, all different": played([1.0 + 0.2 * worker for worker in range(8)], normal),
    }


def played(speeds: list[float], compute: Compute, slow: Sequence[Straggler] = (), gbps: float = math.inf) -> Scenario:
    devices = [Device(compute_s=STEP_S * speed, bandwidth_gbps=gbps) for speed in speeds]
    epochs = math.ceil(400 * 16 * len(speeds) / 1437)
    training = TrainingConfig(batch_size=16, learning_rate=0.01, epochs=epochs)
    return Scenario(devices=devices, compute=compute, faults=Faults(stragglers=list(slow)), training=training)


def rate(name: str, scenario: Scenario, policy: str) -> float:
    """Samples a second of real workers."""
    training = scenario.training
    assert training is not None
    task = build_task(training)
    steps = training.workload_samples(len(task.train)) // training.batch_size + 1
    run = LocalRun(name, parse_policy(policy), training, 0, emulations(scenario, 0, steps, 1.0))
    return run_local(run, task).samples_per_s


def real(console: Console) -> bool:
    """BSP, auto and balanced in turn; the median of two runs of each."""
    table = Table("real workers", "BSP, samples/s", "auto / BSP", "balanced / BSP")
    good = True
    for name, scenario in scenarios().items():
        rates = {policy: median(rate(name, scenario, policy) for _ in range(2)) for policy in (*EXACT, "auto")}
        ratio = rates["auto"] / rates["bsp"]
        table.add_row(name, f"{rates['bsp']:.0f}", f"{ratio:.3f}", f"{rates['balanced'] / rates['bsp']:.3f}")
        good &= ratio >= WORST
    console.print(table)
    return good


def equal(console: Console) -> bool:
    """Equal workers and a fast link, in turn."""
    scenario, ratios = played([1.0] * 4, Compute()), []
    for turn in range(5):
        order = ("bsp", "auto") if turn % 2 else ("auto", "bsp")
        rates = {policy: rate("equal", scenario, policy) for policy in order}
        ratios.append(rates["bsp"] / rates["auto"])
    table = Table("equal workers", "auto / BSP, time", "least", "most")
    table.add_row("median of 5", f"{median(ratios):.3f}", f"{min(ratios):.3f}", f"{max(ratios):.3f}")
    console.print(table)
    return median(ratios) <= LONGEST


PARTS = {"simulated": simulated, "real": real, "equal": equal}


def main(arguments: list[str]) -> int:
    console = Console(width=140)
    if arguments[:1] == ["simulated"]:
        clusters, seeds, generator = (*arguments[1:], *(str(CLUSTERS), str(SEEDS), "one")[len(arguments) - 1 :])
        return 0 if simulated(console, int(clusters), int(seeds), generator) else 1
    passed = [PARTS[name](console) for name in arguments or PARTS]
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
