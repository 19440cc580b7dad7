"""What is run for the page on ESync: the paper's cluster, with a small model on Fashion-MNIST."""

import msgspec

from polyrhythm.sim import Limits, Scenario, TimingWorkload, load_scenario
from polyrhythm.training.config import TrainingConfig
from polyrhythm_experiments.reproduce.lab import Lab, Trial

POLICIES = {"SSGD": "bsp", "ASGD": "asp", "SSP(3)": "ssp:3", "ESync": "esync"}
MODES = {"SSGD": "bsp", "ESync, blocking": "esync", "ESync, non-blocking": "esync:blocking=false"}
"""What is compared by latency."""
ESYNC_MODES = tuple(name for name in MODES if name != "SSGD")
LATENCIES_S = (0.0, 0.01, 0.02, 0.05, 0.1)
"""Of a message, one way."""
TARGET = 0.8
RATES = (0.001, 0.01, 0.1)
"""On the way to the target; the first is the paper's."""
RATE = 0.05
"""Where accuracies are compared: high enough that a few minutes of ESync suffice."""

SPEED_SAMPLES = {0.001: 7680, 0.01: 1920, 0.1: 384}
"""Samples between two evaluations on the way to the target, by rate."""

EQUAL_S = 120.0
"""Time at which accuracies are compared."""
LONG_S = 2_400.0
"""Time that SSGD is given."""

PARTITIONS = {
    "i.i.d.": "shared",
    "Dirichlet(0.3)": "dirichlet:0.3",
    "2 shards a device": "shards:2",
    "sorted": "sorted",
}

REMEDIES: dict[str, tuple[str, tuple[float, float] | None]] = {
    "ESync as published": ("esync", None),
    "weights by samples": ("esync:samples", None),
    "weights 1/n_i": ("esync:inverse", None),
    "weights 1/n_i, normalised": ("esync:normalised", None),
    "injection (0.5, 0.5)": ("esync", (0.5, 0.5)),
    "at most 10 local steps": ("esync:most=10", None),
    "at most 30 local steps": ("esync:most=30", None),
    "at most 10, normalised": ("esync:normalised,most=10", None),
    "at most 30 and injection (0.5, 0.5)": ("esync:most=30", (0.5, 0.5)),
}
"""Policy and injection, for shards in which slow devices own whole labels."""


def trials(lab: Lab) -> dict[str, Trial]:
    return {**system(lab), **speed(lab), **accuracy(lab), **remedies(lab)}


def system(lab: Lab) -> dict[str, Trial]:
    """Times and bytes alone."""
    plain = timed(paper_cluster(), 30.0 if lab.quick else 300.0)
    found = {f"system/{name}": Trial(plain, policy) for name, policy in POLICIES.items()}
    for latency_s in LATENCIES_S:
        network = msgspec.structs.replace(plain.network, latency_s=latency_s)
        far = msgspec.structs.replace(plain, network=network)
        found |= {far_place(latency_s, name): Trial(far, policy) for name, policy in MODES.items()}
    return found


def far_place(latency_s: float, name: str) -> str:
    return f"latency/{latency_s:g}/{name}"


def speed(lab: Lab) -> dict[str, Trial]:
    """Time to the target, at several rates, and for a second model."""
    rates = RATES[1:2] if lab.quick else RATES
    found = {
        f"speed/{rate:g}/{name}": Trial(to_target(lab, rate, SPEED_SAMPLES[rate]), policy, TARGET)
        for rate in rates
        for name, policy in POLICIES.items()
    }
    if lab.quick:
        return found
    cnn = to_target(lab, 0.05, 768, model="cnn")
    return found | {f"speed/cnn/{name}": Trial(cnn, POLICIES[name], TARGET) for name in ("SSGD", "ESync")}


def accuracy(lab: Lab) -> dict[str, Trial]:
    """Accuracy after equal times, i.i.d. and not."""
    found: dict[str, Trial] = {}
    for title, partition in PARTITIONS.items():
        for name in ("ESync", "ASGD"):
            every = 60_000 if name == "ESync" else 10_000
            found[f"accuracy/{title}/{name}"] = Trial(
                trained(lab, seconds=EQUAL_S, every=every, partition=partition), POLICIES[name]
            )
        slow = trained(lab, seconds=LONG_S, every=3_840, partition=partition)
        found |= {f"accuracy/{title}/{name}": Trial(slow, POLICIES[name]) for name in ("SSGD", "SSP(3)")}
    return found


def remedies(lab: Lab) -> dict[str, Trial]:
    """What could help where slow devices own labels."""
    return {
        f"remedy/{title}/{name}": Trial(
            trained(lab, seconds=EQUAL_S, every=60_000, partition=PARTITIONS[title], injection=injection), policy
        )
        for title in ("2 shards a device", "sorted")
        for name, (policy, injection) in REMEDIES.items()
    }


def paper_cluster() -> Scenario:
    """Two devices at 3.5 s a mini-batch and four at 0.03 s."""
    return load_scenario("mixed-hardware")


def timed(scenario: Scenario, seconds: float) -> Scenario:
    workload = TimingWorkload(batch_size=64, samples=100_000_000)
    return msgspec.structs.replace(scenario, training=None, workload=workload, limits=Limits(time_s=seconds))


def to_target(lab: Lab, rate: float, every: int, model: str = "mlp") -> Scenario:
    scenario = trained(lab, seconds=60_000.0, every=every, rate=rate, model=model, test_samples=2000)
    return msgspec.structs.replace(scenario, limits=msgspec.structs.replace(scenario.limits, stop_at_target=True))


def trained(
    lab: Lab,
    *,
    seconds: float,
    every: int,
    rate: float = RATE,
    model: str = "mlp",
    partition: str = "shared",
    injection: tuple[float, float] | None = None,
    samples: int = 50_000_000,
    test_samples: int | None = None,
) -> Scenario:
    """The paper's cluster with a model, for so many seconds; when quick, on the digits and a fortieth of that."""
    training = TrainingConfig(
        task="digits" if lab.quick else "fashion-mnist",
        model="mlp" if lab.quick else model,
        data=None if lab.quick else lab.data,
        test_samples=None if lab.quick else test_samples,
        learning_rate=0.1 if lab.quick else rate,
        lr_convention="same",
        batch_size=64,
        partition=partition,
        injection=injection,
        samples=samples // 40 if lab.quick else samples,
        eval_every_samples=max(384, every // 20) if lab.quick else every,
    )
    limits = Limits(time_s=seconds / 40 if lab.quick else seconds)
    return msgspec.structs.replace(paper_cluster(), training=training, limits=limits)
