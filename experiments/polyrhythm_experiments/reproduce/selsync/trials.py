"""What is run for the page on SelSync: the paper's cluster, with a small model on Fashion-MNIST."""

from typing import Any

import msgspec

from polyrhythm.sim import Device, Scenario, load_scenario
from polyrhythm.training.config import TrainingConfig
from polyrhythm_experiments.reproduce.lab import Lab, Trial

ITERATIONS = 800
"""Steps of each worker in the runs on equal data."""
SKEWED_ITERATIONS = 800
"""The same with one label a worker."""
LABELS = 10
"""Workers with one label each."""

TABLE = {
    "BSP": "bsp",
    "FedAvg (1, 0.25)": "fedavg:1,0.25",
    "FedAvg (1, 0.125)": "fedavg:1,0.125",
    "FedAvg (0.5, 0.25)": "fedavg:0.5,0.25",
    "FedAvg (0.5, 0.125)": "fedavg:0.5,0.125",
    "SSP s = 100": "ssp:100",
    "SSP s = 200": "ssp:200",
    "SelSync delta = 0.3": "selsync:0.3",
    "SelSync delta = 0.5": "selsync:0.5",
}

REGIMES: dict[str, dict[str, Any]] = {
    "momentum 0.9, rate 0.05": {},
    "no momentum, rate 0.1": {"momentum": 0.0, "learning_rate": 0.1},
}
"""Where parameters (PA) and gradients (GA) are aggregated."""

SKEWED: dict[str, tuple[str, tuple[float, float] | None]] = {
    "BSP": ("bsp", None),
    "FedAvg (1, 0.1)": ("fedavg:1,0.1", None),
    "SelSync 0.3, no injection": ("selsync:0.3", None),
    "SelSync (0.5, 0.5, 0.05)": ("selsync:0.05", (0.5, 0.5)),
    "SelSync (0.5, 0.5, 0.3)": ("selsync:0.3", (0.5, 0.5)),
    "SelSync (0.75, 0.75, 0.3)": ("selsync:0.3", (0.75, 0.75)),
}
"""Policy and injection with one label a worker."""

HALVES = {"compression": "fp16"}
AVERAGED = {"averaged_state": "average"}
STRETCH: dict[str, tuple[str, dict[str, Any]]] = {
    "BSP, fp16": ("bsp", HALVES),
    "SelSync 0.3, momentum averaged": ("selsync:0.3", AVERAGED),
    "SelSync 0.3, momentum averaged, fp16": ("selsync:0.3", AVERAGED | HALVES),
    "local SGD(4), momentum averaged, fp16": ("local:4", AVERAGED | HALVES),
    "BSP to the first decay, then local SGD(8), fp16": ("post-local:8,at=0.5", HALVES),
    "DiLoCo(8)": ("diloco:8", {}),
    "DiLoCo(8), no outer momentum": ("diloco:8,lr=1,momentum=0", {}),
}
"""Ours: policy and training, to reach BSP's accuracy sooner."""


def trials(lab: Lab) -> dict[str, Trial]:
    found = {f"table/{name}": trial(lab, policy) for name, policy in TABLE.items()}
    found |= {f"table/SSP s = 100, rate / {n}": trial(lab, "ssp:100", learning_rate=0.05 / n) for n in (4, 16)}
    for delta in (0.3, 0.5):
        for partition in ("seldp", "defdp"):
            found[f"data/{delta}/{partition}"] = trial(lab, f"selsync:{delta}", partition=partition)
    found |= {f"skew/{name}": skewed(lab, *setting) for name, setting in SKEWED.items()}
    return found | {f"stretch/{name}": trial(lab, policy, **more) for name, (policy, more) in STRETCH.items()}


def trial(lab: Lab, policy: str, **training: Any) -> Trial:
    """A run on 16 workers, SelSync on SelDP and all others on DefDP unless said otherwise."""
    partition = "seldp" if policy.startswith("selsync") else "defdp"
    return Trial(cluster(lab, ITERATIONS, 16, **{"partition": partition, **training}), policy)


def skewed(lab: Lab, policy: str, injection: tuple[float, float] | None, partition: str = "labels:1") -> Trial:
    """A run on workers with one label each; with injection they draw fewer samples, in as many steps."""
    label: dict[str, Any] = {"partition": partition, "injection": injection, "learning_rate": 0.01}
    return Trial(cluster(lab, SKEWED_ITERATIONS, LABELS, **label), policy)


def cluster(lab: Lab, iterations: int, workers: int, every: int | None = None, **training: Any) -> Scenario:
    """The paper's cluster with so many workers; when quick, on the digits and a fiftieth of the steps.

    Args:
        lab: that runs it.
        iterations: steps of each worker.
        workers: of the cluster.
        every: steps from an evaluation to the next; None: a fortieth of them.
        training: what differs from the hyper-parameters of the page.
    """
    steps = iterations // 50 if lab.quick else iterations
    config = training_config(lab, **training)
    together = workers * config.own_batch(workers)
    samples = steps * together
    spaced = every * together if every else samples // 40
    config = msgspec.structs.replace(config, samples=samples, eval_every_samples=spaced)
    base = load_scenario("thin-links")
    (device,) = base.devices
    devices: list[Device] = [msgspec.structs.replace(device, count=workers)]
    vectors = 2 if config.averaged_state == "average" else 1  # momentum travels as well, which nobody else counts
    network = msgspec.structs.replace(base.network, message_bytes=vectors * base.network.message_bytes)
    return msgspec.structs.replace(base, devices=devices, network=network, training=config)


HYPER_PARAMETERS: dict[str, Any] = {
    "model": "mlp",
    "learning_rate": 0.05,
    "momentum": 0.9,
    "weight_decay": 5e-4,
    "lr_convention": "same",
    "schedule": "step",
    "decay_at": (0.5, 0.75),
    "batch_size": 32,
}
"""The paper's of VGG11, at five times its rate: our model is small."""


def training_config(lab: Lab, **training: Any) -> TrainingConfig:
    task = "digits" if lab.quick else "fashion-mnist"
    given = {**HYPER_PARAMETERS, "task": task, "data": None if lab.quick else lab.data}
    return TrainingConfig(**(given | training))
