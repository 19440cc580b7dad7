"""What replica exchange gains on simulated clusters, against the claims of the papers on ESync and SelSync.

``replicas.py`` measures times and bytes alone, ESync on the scenario mixed-hardware. ``replicas.py FOLDER``, or
POLYRHYTHM_DATA=FOLDER in the environment, also trains an MLP with 64 hidden units on Fashion-MNIST from the parquet
files in FOLDER, three seeds each: ESync against BSP (the paper's SSGD) on the same cluster, and SelSync on 16 workers
(thin-links) against BSP and FedAvg. Prints every figure beside its bar and exits with 1 if one is missed. The rate of
every update and of every local step is the same (lr_convention = "same"), as in the papers.
"""

import os
import sys
from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.table import Table

from polyrhythm.policies import parse_policy
from polyrhythm.sim import Device, Limits, Scenario, TimingWorkload, load_scenario, simulate, sweep
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig
from polyrhythm_experiments.reproduce.selsync.trials import HYPER_PARAMETERS

SEEDS = (0, 1, 2)
TARGET = 0.8
STEPS = 1_600
"""Mini-batches of each of a worker of SelSync's clusters."""


class Figure(NamedTuple):
    """What was measured, what it has to be, and whether more is better; no bar is for information."""

    what: str
    value: float
    bar: float | None = None
    least: bool = True

    @property
    def met(self) -> bool:
        """Whether the bar is met; a figure that is not a number meets none."""
        return self.bar is None or (self.value >= self.bar if self.least else self.value <= self.bar)


# ESync.


def mixed(training: TrainingConfig | None = None, limits: Limits | None = None) -> Scenario:
    """Two devices at 3.5 s a mini-batch and four at 0.03 s."""
    workload = TimingWorkload(batch_size=64, samples=2_000_000)
    scenario = load_scenario("mixed-hardware")
    return msgspec.structs.replace(scenario, training=training, workload=workload, limits=limits or Limits())


def esync_times() -> list[Figure]:
    """Throughput, traffic and computing time (the paper's figures 4 and 5), 300 s."""
    limited = mixed(limits=Limits(time_s=300.0))
    bsp, asp, esync, free = (
        simulate(limited, parse_policy(s)) for s in ("bsp", "asp", "esync", "esync:blocking=false")
    )
    asked = simulate(far(limited, 0.02), parse_policy("esync"))
    unasked, distant = (simulate(far(limited, s), parse_policy("esync:blocking=false")) for s in (0.02, 0.1))
    return [
        Figure("ESync: samples/s over BSP", esync.samples_per_s / bsp.samples_per_s, 30),
        Figure("ESync: samples/s over ASP", esync.samples_per_s / asp.samples_per_s, 3),
        Figure("ESync: server bytes/s over ASP", bytes_per_s(esync) / bytes_per_s(asp), 0.1, least=False),
        Figure("ESync: least computing-time ratio of a device", min(esync.compute_fraction_by_worker.values()), 0.85),
        Figure("ESync, non-blocking: the same", min(free.compute_fraction_by_worker.values()), 0.85),
        Figure("latency 20 ms: samples/s over BSP without it", asked.samples_per_s / bsp.samples_per_s),
        Figure("latency 20 ms, non-blocking: the same", unasked.samples_per_s / bsp.samples_per_s),
        Figure(
            "latency 100 ms, non-blocking: samples/s over those without",
            distant.samples_per_s / free.samples_per_s,
            0.9,
        ),
    ]


def far(scenario: Scenario, latency_s: float) -> Scenario:
    """The same with messages that travel so long."""
    return msgspec.structs.replace(scenario, network=msgspec.structs.replace(scenario.network, latency_s=latency_s))


def bytes_per_s(result: RunResult) -> float:
    """Traffic of the server."""
    return result.bytes_total / result.duration_s


def on_mixed(data: str, limits: Limits, **fields: Any) -> Scenario:
    """The mixed cluster with an MLP at rate 0.01."""
    defaults = {
        "task": "fashion-mnist",
        "model": "mlp",
        "data": data,
        "learning_rate": 0.01,
        "lr_convention": "same",
        "batch_size": 64,
    }
    return mixed(TrainingConfig(**{**defaults, "samples": 50_000_000, **fields}), limits)


def esync_accuracy(data: str) -> list[Figure]:
    """Time to 80 % and final accuracy, i.i.d. and with labels spread unevenly (figure 3)."""
    stop = Limits(time_s=6_000, stop_at_target=True)
    race = on_mixed(data, stop, test_samples=2_000, eval_every_samples=1_920, target_accuracy=TARGET)
    bsp, esync = mean_of(race, "bsp", "time_to_target_s"), mean_of(race, "esync", "time_to_target_s")
    long = on_mixed(data, Limits(time_s=500), eval_every_samples=1_000_000)
    alone = msgspec.structs.replace(
        on_mixed(data, Limits(samples=64 * 20_000), eval_every_samples=640_000), devices=[Device(compute_s=0.03)]
    )
    uneven = on_mixed(data, Limits(time_s=300), eval_every_samples=1_000_000, partition="dirichlet:0.3")
    uneven_bsp = on_mixed(data, Limits(time_s=300), eval_every_samples=20_000, partition="dirichlet:0.3")
    lost = mean_of(alone, "bsp", "final_accuracy") - mean_of(long, "esync", "final_accuracy")
    won = mean_of(uneven, "esync", "final_accuracy") - mean_of(uneven_bsp, "bsp", "final_accuracy")
    return [
        Figure("ESync: time to 80 % of BSP over its own", bsp / esync, 20),
        Figure("ESync: points below one device alone, 500 s", 100 * lost, 1.5, least=False),
        Figure("ESync, Dirichlet(0.3): points above BSP after 300 s", 100 * won, 10),
    ]


# SelSync.


def thin(data: str, workers: int = 16, steps: int = STEPS, **fields: Any) -> Scenario:
    """16 workers behind a link that takes 26 s for an exchange; rate 0.05, momentum 0.9, decays at 50 and 75 %."""
    scenario = load_scenario("thin-links")
    defaults = {
        **HYPER_PARAMETERS,
        "task": "fashion-mnist",
        "data": data,
        "samples": workers * 32 * steps,
        "eval_every_samples": workers * 32 * steps // 40,
    }
    devices = [msgspec.structs.replace(scenario.devices[0], count=workers)]
    return msgspec.structs.replace(scenario, devices=devices, training=TrainingConfig(**{**defaults, **fields}))


def selsync(data: str) -> list[Figure]:
    """SelSync at delta 0.3 against BSP, aggregated gradients and FedAvg (table I, figure 10)."""
    scenario = thin(data)
    bsp, pa = runs(scenario, "bsp"), runs(scenario, "selsync:0.3")
    ga, fedavg = runs(scenario, "selsync:0.3,aggregate=gradients"), runs(scenario, "fedavg:1,0.25")
    halves = runs(thin(data, compression="fp16"), STRETCH)
    duration = mean(bsp, "duration_s")
    return [
        Figure("SelSync(0.3): LSSR", mean(pa, "lssr"), 0.65),
        Figure("SelSync(0.3): LSSR", mean(pa, "lssr"), 0.9, least=False),
        Figure("SelSync(0.3): time over BSP's", mean(pa, "duration_s") / duration, 0.35, least=False),
        Figure("SelSync(0.3): points below BSP", points(bsp, pa), 1.0, least=False),
        Figure("SelSync(0.3): time of BSP to (BSP - 1 point) over its own", catch_up(bsp, pa), 2),
        Figure("SelSync(0.3): points above aggregated gradients", points(pa, ga), 10),
        Figure("aggregated gradients: accuracy of one replica", 100 * mean(ga, "replica_accuracy")),
        Figure("SelSync(0.3): points above FedAvg(1, 0.25)", points(pa, fedavg), 0.5),
        Figure(f"{STRETCH}, fp16: points below BSP", points(bsp, halves)),
        Figure("the same: time over BSP's", mean(halves, "duration_s") / duration, 0.4, least=False),
    ]


STRETCH = "post-local:8,at=0.5"
"""A try at BSP's accuracy at equal samples in 0.4 of its time: BSP until the first decay of the rate, then an average
every 8 steps; all in half precision. Averaging momentum in SelSync costs as many bytes as the exchanges that it saves.
"""


def one_label_each(data: str) -> list[Figure]:
    """Ten workers with one label each: data injection against FedAvg (figure 12)."""
    fields: dict[str, Any] = {"workers": 10, "steps": 1_200, "learning_rate": 0.01, "partition": "labels:1"}
    injection = (0.5, 0.5)
    own = TrainingConfig(injection=injection).own_batch(10)  # a job with injection draws fewer samples in as many steps
    injected = runs(thin(data, injection=injection, samples=10 * own * 1_200, **fields), "selsync:0.3")
    won = points(injected, runs(thin(data, **fields), "fedavg:1,0.1"))
    return [Figure("one label each, injection (0.5, 0.5, 0.3): points above FedAvg(1, 0.1)", won, 2)]


# Means over seeds.


def runs(scenario: Scenario, policy: str) -> list[RunResult]:
    """One run a seed; all must come to their end."""
    found = sweep(scenario, [policy], SEEDS, jobs=int(os.environ.get("POLYRHYTHM_JOBS", "-1")))
    for result in found:
        if result.status != "ok":
            sys.exit(f"{policy}, seed {result.seed}: {result.status}: {result.message}")
    return found


def mean(found: Sequence[RunResult], name: str) -> float:
    """A figure's mean; not a number if a run does not have it."""
    values = [getattr(result, name) for result in found]
    return float("nan") if None in values else fmean(values)


def mean_of(scenario: Scenario, policy: str, name: str) -> float:
    """A figure's mean over the seeds."""
    return mean(runs(scenario, policy), name)


def points(better: Sequence[RunResult], worse: Sequence[RunResult]) -> float:
    """Percentage points between the final accuracies of two."""
    return 100 * (mean(better, "final_accuracy") - mean(worse, "final_accuracy"))


def catch_up(slow: Sequence[RunResult], fast: Sequence[RunResult]) -> float:
    """Time of the slow runs over that of the fast ones to the slow ones' final accuracy less a point, seed by seed."""
    pairs = [(time_to(s, goal(s)), time_to(f, goal(s))) for s, f in zip(slow, fast, strict=True)]
    return fmean(own for own, _ in pairs) / fmean(other for _, other in pairs)


def goal(result: RunResult) -> float:
    """One point below its final accuracy."""
    return (result.final_accuracy or 0.0) - 0.01


def time_to(result: RunResult, accuracy: float) -> float:
    """When a run first reached an accuracy; never is infinitely late."""
    return next((point.time_s for point in result.curve if point.accuracy >= accuracy), float("inf"))


def show(console: Console, figures: Sequence[Figure]) -> bool:
    """Print figures; whether all meet their bars."""
    table = Table("figure", "measured", "bar", "")
    for figure in figures:
        bar = "" if figure.bar is None else f"{'>=' if figure.least else '<='} {figure.bar:g}"
        verdict = "met" if figure.met else "MISSED"
        table.add_row(figure.what, f"{figure.value:.3g}", bar, verdict if bar else "")
    console.print(table)
    return all(figure.met for figure in figures)


def main(folders: list[str]) -> int:
    """All measurements that the data allow."""
    data = folders[0] if folders else os.environ.get("POLYRHYTHM_DATA")
    console = Console(width=120)
    good = show(console, esync_times())
    if data is None:
        console.print("no data: give the folder of Fashion-MNIST for the bars on accuracy")
        return 0 if good else 1
    for part in (esync_accuracy, selsync, one_label_each):
        good &= show(console, part(data))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
