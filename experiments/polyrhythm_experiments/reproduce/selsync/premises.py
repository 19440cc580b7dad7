"""What the paper on SelSync starts from: figures 1 and 2, how other methods scale, learn and pay."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import fmean

import msgspec
import torch
from torch import Tensor

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.sim import Scenario, TimingWorkload, load_scenario
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.tasks import build_task
from polyrhythm_experiments.reproduce.figures import Measured, difference, mean_text, over_seeds, ratio, times
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.selsync.causes import accuracies
from polyrhythm_experiments.reproduce.selsync.trials import skewed

WORKERS = (1, 2, 4, 8, 16)
STEPS = 20
"""Of each worker; nothing is trained."""
VGG11, RESNET101 = 507e6, 178e6
"""Bytes of a message: the paper's, and four for each of 44.5 M parameters."""
COLUMNS: dict[str, tuple[float, float, int]] = {
    "VGG11": (VGG11, 0.04, 1),
    "ResNet101": (RESNET101, 0.04, 1),
    "ResNet101, steps of 1 s": (RESNET101, 1.0, 1),
    "ResNet101, steps of 1 s, 4 servers": (RESNET101, 1.0, 4),
}
"""Bytes of a message, seconds of a mini-batch, servers."""
FEDERATED = "skew/FedAvg (1, 0.1)"
ALIKE = f"{FEDERATED}, i.i.d. data"
BATCHES = (32, 64, 128, 256, 512)
ROUNDS = 3


def premise_trials(lab: Lab) -> dict[str, Trial]:
    found = {place(name, n): Trial(timed(n, *setting), "bsp") for name, setting in COLUMNS.items() for n in WORKERS}
    return found | {ALIKE: skewed(lab, "fedavg:1,0.1", None, partition="defdp")}


def place(name: str, workers: int) -> str:
    return f"scale/{name}/{workers}"


def timed(workers: int, message_bytes: float, step_s: float, servers: int) -> Scenario:
    """The paper's cluster with so many workers that learn nothing; one alone has nobody to send to."""
    base = load_scenario("thin-links")
    (device,) = base.devices
    own = message_bytes if workers > 1 else 0.0
    return msgspec.structs.replace(
        base,
        devices=[msgspec.structs.replace(device, count=workers, compute_s=step_s)],
        network=msgspec.structs.replace(base.network, message_bytes=own, shards=servers),
        workload=TimingWorkload(samples=STEPS * workers * 32),
        training=None,
    )


@dataclass(frozen=True)
class BatchCost:
    """Of a gradient, by size of the mini-batch: processor seconds, and bytes kept for the backward pass."""

    seconds: dict[int, float]
    kept_bytes: dict[int, int]


def batch_costs(lab: Lab) -> list[BatchCost]:
    """Of a ResNet-20; measured on this host."""
    config = TrainingConfig(task="digits", model="cnn") if lab.quick else resnet(lab)
    return lab.live(
        "batch-cost", [msgspec.to_builtins(config), BATCHES, ROUNDS], lambda seed: measure(config, seed), BatchCost
    )


def resnet(lab: Lab) -> TrainingConfig:
    return TrainingConfig(task="cifar10-16", model="resnet20", data=lab.data, train_samples=max(BATCHES))


def measure(config: TrainingConfig, seed: int) -> BatchCost:
    task = build_task(config)
    model = task.build(seed)

    def gradient(batch: int) -> None:
        inputs, targets = task.batch(torch.arange(batch))
        model.zero_grad()
        task.loss(model(inputs), targets).backward()  # type: ignore[no-untyped-call]

    works = {batch: partial(gradient, batch) for batch in BATCHES}
    return BatchCost(
        {batch: quickest(work) for batch, work in works.items()},
        {batch: kept_bytes(work) for batch, work in works.items()},
    )


def quickest(work: Callable[[], None]) -> float:
    """Processor seconds of the quickest of some rounds: other work of the machine only adds to it."""
    return min(processor_s(work) for _ in range(ROUNDS))


def processor_s(work: Callable[[], None]) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start


def kept_bytes(work: Callable[[], None]) -> int:
    """Bytes of the tensors that forward passes keep for the backward pass, each memory once."""
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        work()
    return sum(kept.values())


# -- the part of the page ----------------------------------------------------------------------------------------------


def premise_section(lab: Lab, runs: Results) -> DocumentSection:
    costs = batch_costs(lab)
    rows = [*scale_rows(runs), skew_row(runs), *cost_rows(costs)]
    return findings("What others cost: figures 1 and 2", text_of(lab), rows, [by_workers(runs), by_batch(costs)])


def text_of(lab: Lab) -> str:
    network = lab.task("ResNet-20 on images of 16x16 pixels")
    return (
        "Throughput is timing alone, without training: BSP through one server of 5 Gbit/s, one worker sends nothing. "
        "The paper's hosts have up to four workers each, and it does not give the time of a mini-batch. What a "
        f"mini-batch costs is measured here, on one core: processor time of a gradient ({network}), the quickest of "
        f"{ROUNDS}, and what the forward pass keeps for the backward pass."
    )


def scale_rows(runs: Results) -> list[ClaimRow]:
    slow, split = (mean_text(scale(runs, name, 16)) for name in list(COLUMNS)[2:])
    why = f"The mini-batch, and the server: {slow} with steps of 1 s in place of 0.04 s, {split} with 4 servers, too."
    return [
        ClaimRow(
            "samples/s of 2 workers over 1, VGG11", "section II-A, fig. 1a", "less than 1x", scale(runs, "VGG11", 2)
        ),
        ClaimRow(
            "samples/s of 16 workers over 1, ResNet101",
            "section II-A, fig. 1a",
            "3x",
            scale(runs, "ResNet101", 16),
            why,
        ),
    ]


def scale(runs: Results, name: str, workers: int) -> Measured:
    """Throughput over that of one worker."""
    many, one = ([run.samples_per_s for run in runs[place(name, n)]] for n in (workers, 1))
    return ratio(many, one)


def skew_row(runs: Results) -> ClaimRow:
    lost = difference(accuracies(runs[FEDERATED]), accuracies(runs[ALIKE]))
    what = "accuracy, FedAvg (1, 0.1), one label a worker less i.i.d. data, 10 workers"
    return ClaimRow(what, "section II-B, fig. 1b", "less", lost)


def cost_rows(costs: list[BatchCost]) -> list[ClaimRow]:
    small, large = BATCHES[0], BATCHES[-1]
    slower = [cost.seconds[large] / cost.seconds[small] for cost in costs]
    larger = [cost.kept_bytes[large] / cost.kept_bytes[small] for cost in costs]
    return [
        ClaimRow(
            f"time of a gradient, mini-batch {large} over {small}",
            "section II-C, fig. 2a",
            "more",
            over_seeds(slower, times),
        ),
        ClaimRow(
            f"memory of a gradient, mini-batch {large} over {small}",
            "section II-C, fig. 2b",
            "more",
            over_seeds(larger, times),
        ),
    ]


def by_workers(runs: Results) -> Grid:
    cells = [[str(n), *(mean_text(scale(runs, name, n)) for name in COLUMNS)] for n in WORKERS]
    return Grid("Samples a second over those of one worker", ("workers", *COLUMNS), cells)


def by_batch(costs: list[BatchCost]) -> Grid:
    cells = [
        [
            str(batch),
            f"{1e3 * fmean(cost.seconds[batch] for cost in costs):.0f}",
            f"{fmean(cost.kept_bytes[batch] for cost in costs) / 1e6:.1f}",
        ]
        for batch in BATCHES
    ]
    return Grid("A gradient by mini-batch", ("mini-batch", "processor time (ms)", "kept (MB)"), cells)
