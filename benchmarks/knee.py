"""How early a switch from BSP to ASP keeps the accuracy, by schedule, momentum and learning rate.

    python benchmarks/knee.py FOLDER                                 on Fashion-MNIST's parquet files in FOLDER
    python benchmarks/knee.py FOLDER --schedules early --seeds 5     one schedule of it

Eight equal workers. The knee is the smallest share under BSP from which on every larger one is within a point of BSP
alone. Where ASP itself is, there is none: the first column of accuracies says so.
"""

import argparse
from collections.abc import Sequence
from itertools import product
from statistics import fmean, stdev
from typing import Any

import msgspec

from polyrhythm.sim import Compute, Device, Network, Scenario, sweep
from polyrhythm.training.config import TrainingConfig

SHARES = (0.0, 0.0625, 0.125, 0.25, 0.5, 1.0)
MARGIN = 0.01


SCHEDULES: dict[str, dict[str, Any]] = {
    "late": {"schedule": "step", "decay_at": (0.5, 0.75)},
    "late, warm-up": {"schedule": "step", "decay_at": (0.5, 0.75), "warmup": 0.0625},
    "early": {"schedule": "step", "decay_at": (0.125, 0.5)},
    "cosine": {"schedule": "cosine"},
    "constant": {"schedule": "constant"},
}
RATES = (0.003, 0.006, 0.012)
MOMENTA = {0.9: 1.0, 0.0: 10.0}
"""Momentum, and the factor on the rate with which a step goes about as far in the end."""


def scenario(folder: str, schedule: str, momentum: float, rate: float, model: str, samples: int) -> Scenario:
    """Equal workers; the accuracy is that at the end, on all test images."""
    training = TrainingConfig(
        task="fashion-mnist",
        data=folder,
        model=model,
        train_samples=20_000,
        test_samples=10_000,
        learning_rate=rate * MOMENTA[momentum],
        momentum=momentum,
        batch_size=32,
        samples=samples,
        eval_every_samples=samples,
    )
    return Scenario(
        name="knee",
        devices=[Device(count=8, compute_s=0.1, bandwidth_gbps=1)],
        compute=Compute(distribution="normal", deviation=0.05),
        network=Network(message_bytes=2e6, server_gbps=1),
        training=msgspec.structs.replace(training, **SCHEDULES[schedule]),
    )


def accuracies(scene: Scenario, seeds: Sequence[int], jobs: int) -> dict[float, list[float]]:
    """By share, one a seed; that of guessing for a run that diverged."""
    specs = [f"switch:bsp@{share:g},asp" for share in SHARES]
    results = sweep(scene, specs, seeds, jobs=jobs)
    found = [0.1 if run.final_accuracy is None else run.final_accuracy for run in results]
    return {share: found[k * len(seeds) : (k + 1) * len(seeds)] for k, share in enumerate(SHARES)}


def knee(means: dict[float, float]) -> float:
    """The smallest share from which on all are within the margin of BSP."""
    good = 1.0
    for share in sorted(SHARES, reverse=True):
        if means[share] < means[1.0] - MARGIN:
            return good
        good = share
    return good


def main() -> None:
    """Print a row for each setting."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="folder with Fashion-MNIST's parquet files")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=-1)
    parser.add_argument("--model", default="mlp")
    parser.add_argument("--samples", type=int, default=100_000, help="of the whole job")
    parser.add_argument("--schedules", nargs="*", choices=SCHEDULES, default=list(SCHEDULES))
    parser.add_argument("--rates", nargs="*", type=float, default=list(RATES))
    parser.add_argument("--momenta", nargs="*", type=float, choices=MOMENTA, default=list(MOMENTA))
    options = parser.parse_args()
    print("schedule, momentum, rate, accuracy at", *(f"{share:g}" for share in SHARES), "under BSP, deviation, knee")
    for schedule, momentum, rate in product(options.schedules, options.momenta, options.rates):
        scene = scenario(options.folder, schedule, momentum, rate, options.model, options.samples)
        found = accuracies(scene, range(options.seeds), options.jobs)
        means = {share: fmean(values) for share, values in found.items()}
        spread = max(stdev(values) for values in found.values()) if options.seeds > 1 else 0.0
        shown = f"{at:g}" if (at := knee(means)) else "none"
        setting = f"{schedule:13} {momentum:3g} {rate * MOMENTA[momentum]:5g}"
        print(setting, *(f"{mean:.4f}" for mean in means.values()), f"{spread:.4f}", shown, flush=True)


if __name__ == "__main__":
    main()
