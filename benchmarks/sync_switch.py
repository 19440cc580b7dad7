"""Sync-Switch in the simulator: what switching does to accuracy and time, and what greedy and elastic save.

    python benchmarks/sync_switch.py                      stragglers, timing only
    python benchmarks/sync_switch.py FOLDER [--seeds 4]   accuracy too, on Fashion-MNIST's parquet files in FOLDER

Prints tables and exits with 1 if a bar is missed.
"""

import argparse
import sys
from collections.abc import Sequence
from statistics import fmean, stdev

from rich.console import Console
from rich.table import Table

from polyrhythm.sim import Compute, Device, Network, Scenario, load_scenario, sweep
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig

PAPER_SWITCH_S = 36.0
"""What a switch costs in the paper, by a restart from a checkpoint."""

LIVE_SWITCH_S = 0.025
"""What one costs in the running job; see docs/policies/switch.md."""

ELASTIC = 1.05
"""Least speed-up of elastic over the run that takes no notice of stragglers."""


def stragglers(console: Console, seeds: Sequence[int], jobs: int) -> bool:
    """Time of a whole job whose BSP part meets stragglers, by what a switch costs."""
    table = Table("a switch costs", "policy", "time", "speed-up", "switches", "steps dropped")
    good = True
    for cost_s in (PAPER_SWITCH_S, LIVE_SWITCH_S):
        scenario = load_scenario(
            "stragglers-moderate",
            {
                "training": "none",
                "devices.0.compute_s": "0.05",
                "workload.samples": "800_000",
                "switch_cost_s": str(cost_s),
            },
        )
        specs = ["switch:bsp@0.25,asp", "greedy:(switch:bsp@0.25,asp)", "elastic:(switch:bsp@0.25,asp)"]
        runs = by_policy(specs, sweep(scenario, specs, seeds, jobs=jobs))
        times = {spec: fmean(run.duration_s for run in runs[spec]) for spec in specs}
        for spec in specs:
            dropped = fmean(run.gradients_dropped for run in runs[spec])
            switches = fmean(run.switches for run in runs[spec])
            speedup = times[specs[0]] / times[spec]
            row = f"{times[spec]:.0f} s", f"{speedup:.3f}", f"{switches:.1f}", f"{dropped:.0f}"
            table.add_row(f"{cost_s:g} s", spec, *row)
        agnostic, greedy, elastic = (times[spec] for spec in specs)
        good &= agnostic / elastic >= ELASTIC and elastic < greedy
    console.print(table)
    console.print(
        f"bar: elastic at least {ELASTIC}x as fast as the switch alone, and faster than greedy, at both costs"
    )
    return good


def by_policy(specs: Sequence[str], results: Sequence[RunResult]) -> dict[str, list[RunResult]]:
    """Results of each spec, in the order of the seeds."""
    count = len(results) // len(specs)
    return {spec: list(results[k * count : (k + 1) * count]) for k, spec in enumerate(specs)}


def fashion(folder: str, workers: int, faults: bool = False) -> Scenario:
    """Equal workers on Fashion-MNIST in the regime in which staleness and momentum hurt ASP."""
    training = TrainingConfig(
        task="fashion-mnist",
        data=folder,
        model="mlp",
        train_samples=20_000,
        learning_rate=0.006,
        momentum=0.9,
        batch_size=32,
        samples=400_000,
        schedule="step",
        decay_at=(0.5, 0.75),
        eval_every_samples=400_000,
    )
    return Scenario(
        name=f"fashion-{workers}",
        devices=[Device(count=workers, compute_s=0.1, bandwidth_gbps=1)],
        compute=Compute(distribution="normal", deviation=0.05),
        network=Network(message_bytes=2e6, server_gbps=1),
        faults=load_scenario("stragglers-moderate").faults if faults else load_scenario("uniform").faults,
        training=training,
    )


def accuracy(console: Console, folder: str, seeds: Sequence[int], jobs: int) -> bool:
    """Accuracy and time by the switch point, at 8 and at 16 workers."""
    table = Table("workers", "policy", "accuracy", "deviation", "time / BSP's")
    points = ["switch:bsp@0.0625,asp", "switch:bsp@0.125,asp", "switch:bsp@0.25,asp", "switch:bsp@0.5,asp"]
    found: dict[tuple[int, str], tuple[float, float]] = {}
    for workers, specs in ((8, ["bsp", "asp", *points, "switch:asp@0.5,bsp"]), (16, ["bsp", "asp", *points[2:]])):
        runs = by_policy(specs, sweep(fashion(folder, workers), specs, seeds, jobs=jobs))
        base_s = fmean(run.duration_s for run in runs["bsp"])
        for spec in specs:
            scores = [0.1 if run.final_accuracy is None else run.final_accuracy for run in runs[spec]]
            mean, share = fmean(scores), fmean(run.duration_s for run in runs[spec]) / base_s
            spread = stdev(scores) if len(scores) > 1 else 0.0
            found[workers, spec] = mean, share
            table.add_row(str(workers), spec, f"{mean:.4f}", f"{spread:.4f}", f"{share:.2f}")
    console.print(table)
    return verdicts(console, found)


def verdicts(console: Console, found: dict[tuple[int, str], tuple[float, float]]) -> bool:
    """The bars on accuracy, one line each."""
    half, back = "switch:bsp@0.5,asp", "switch:asp@0.5,bsp"
    score = {key: value[0] for key, value in found.items()}
    bars = {
        "8 workers: 50 % within 1 point of BSP": score[8, half] >= score[8, "bsp"] - 0.01,
        "8 workers: 50 % in at most 0.8 of BSP's time": found[8, half][1] <= 0.8,
        "8 workers: ASP at least 1 point below BSP": score[8, "asp"] <= score[8, "bsp"] - 0.01,
        "8 workers: BSP->ASP at least 1.5 points above ASP->BSP": score[8, half] >= score[8, back] + 0.015,
        "16 workers: ASP at most 0.6": score[16, "asp"] <= 0.6,
        "16 workers: 50 % within 1.5 points of BSP": score[16, half] >= score[16, "bsp"] - 0.015,
    }
    for bar, met in bars.items():
        console.print(f"{'met   ' if met else 'MISSED'} {bar}")
    return all(bars.values())


def elastic_accuracy(console: Console, folder: str, seeds: Sequence[int], jobs: int) -> bool:
    """Accuracy of elastic among stragglers against the same switch without any."""
    table = Table("stragglers", "policy", "accuracy", "time")
    plain = "switch:bsp@0.5,asp"
    cases = [(False, plain), (True, plain), (True, f"greedy:({plain})"), (True, f"elastic:({plain})")]
    scores = []
    for faults, spec in cases:
        runs = sweep(fashion(folder, 8, faults), [spec], seeds, jobs=jobs)
        scores.append(fmean(run.final_accuracy or 0.1 for run in runs))
        time_s = fmean(run.duration_s for run in runs)
        table.add_row("yes" if faults else "no", spec, f"{scores[-1]:.4f}", f"{time_s:.0f} s")
    console.print(table)
    met = scores[-1] >= scores[0] - 0.005
    console.print(f"{'met   ' if met else 'MISSED'} elastic within 0.5 points of the run without stragglers")
    return met


def main() -> int:
    """Print the tables; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", help="folder with Fashion-MNIST's parquet files")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--jobs", type=int, default=-1)
    options = parser.parse_args()
    console, seeds = Console(width=120), range(options.seeds)
    met = [stragglers(console, seeds, options.jobs)]
    if options.folder:
        met.append(accuracy(console, options.folder, seeds, options.jobs))
        met.append(elastic_accuracy(console, options.folder, seeds, options.jobs))
    return 0 if all(met) else 1


if __name__ == "__main__":
    sys.exit(main())
