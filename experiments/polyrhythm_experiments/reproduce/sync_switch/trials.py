"""What is run for the page on Sync-Switch: its three setups, with a small model on Fashion-MNIST for ResNets."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from polyrhythm.sim import Compute, Device, Faults, Network, RandomStragglers, Scenario, TimingWorkload
from polyrhythm.training.config import TrainingConfig
from polyrhythm_experiments.reproduce.lab import Lab, Trial

SAMPLES = 400_000
"""Workload; the learning rate falls to a tenth at 50 % of it and to a hundredth at 75 %."""
EVALUATIONS = 32
"""Evenly over the workload, as the paper's: one every 2,000 of 64,000 mini-batches."""
PAPER_BATCHES = 64_000
COMBINE_S = 0.1386
"""What the server takes for each gradient of an update of BSP, in every setup; see `calibration`."""


@dataclass(frozen=True)
class Setup:
    """One of the paper's setups, and what stands for it here.

    Args:
        paper: as the paper has it.
        workers: as the paper has them.
        rate: of one mini-batch.
        compute_s: of one mini-batch; see `calibration`.
        shares: switch points that are tried.
        chosen: the paper's switch point.
    """

    paper: str
    workers: int
    rate: float
    compute_s: float
    shares: tuple[float, ...]
    chosen: float


POLICIES = (0.0625, 0.125, 0.5)
"""Switch points of the paper's policies 1 to 3."""
SETUPS = {
    1: Setup("ResNet32 on CIFAR-10, 8 K80", 8, 0.006, 0.197, (0.0625, 0.125, 0.25, 0.5, 0.75), POLICIES[0]),
    2: Setup("ResNet50 on CIFAR-100, 8 K80", 8, 0.003, 1.39, POLICIES, POLICIES[1]),
    3: Setup("ResNet32 on CIFAR-10, 16 K80", 16, 0.006, 0.168, POLICIES, POLICIES[2]),
}

GENTLE = {"half": 0.5, "quarter": 0.25}
"""Factors on the paper's rate of ASP after a switch by policy 1, beside 1."""

MOMENTA = {"0": "zero", "1/n": "1/n", "2^i/n": "2^i/n", "i/n": "i/n"}
"""The momenta of figure 8(b) beside the same one, by the paper's names."""

BATCHES = (16, 32, 64, 128)
"""Mini-batches after the switch, figure 8(a)."""

MESSAGES = 6.4
"""Messages of the paper's workers that one of ours stands for, by what stragglers cost in the logs."""
SCENES = {
    "mild": RandomStragglers(workers=1, to_s=98, duration_s=30, extra_latency_s=MESSAGES * 0.01),
    "moderate": RandomStragglers(workers=2, occurrences=4, to_s=98, duration_s=30, extra_latency_s=MESSAGES * 0.03),
}
"""The paper's two scenes, within the 129 s that BSP has in setup 1."""

SWITCH_COST_S = 7.0
"""The paper's 36 s, scaled to a job of 12,500 mini-batches."""

STRAGGLERS = {
    "agnostic": "{}",
    "greedy": "greedy:({})",
    "elastic": "elastic:({})",
    "elastic, probes dropped": "elastic:({}),probes=drop",
}
TRAINED = {"mild": ("agnostic", "greedy", "elastic"), "moderate": ("agnostic", "elastic", "elastic, probes dropped")}
"""What is trained in a scene; the others are of times alone."""
GENTLE_SCENES = {"mild": TRAINED["mild"], "moderate": ("agnostic", "elastic, probes dropped")}
"""What is trained once more with half the rate after the switch."""


def switch(share: float, options: str = "") -> str:
    return f"switch:bsp@{share:g},asp{options}"


CHOSEN = switch(SETUPS[1].chosen)


def trials(lab: Lab) -> dict[str, Trial]:
    return {**setups(lab), **batches(lab), **stragglers(lab)}


def setups(lab: Lab) -> dict[str, Trial]:
    """BSP, ASP and every switch point of each setup, and the other order in the first."""
    found: dict[str, Trial] = {}
    for number, setup in SETUPS.items():
        scenario = scenario_of(lab, setup)
        policies = {"BSP": "bsp", "ASP": "asp", **{f"{share:g}": switch(share) for share in setup.shares}}
        policies |= {name: switch(POLICIES[0], f",lr={factor:g}") for name, factor in GENTLE.items()}
        found |= {f"{number}/{name}": Trial(scenario, policy) for name, policy in policies.items()}
    return found | {"1/ASP to BSP": Trial(scenario_of(lab, SETUPS[1]), "switch:asp@0.5,bsp")}


def batches(lab: Lab) -> dict[str, Trial]:
    """Mini-batches of other sizes after a switch at 6.25 %; times alone."""
    scenario = timed(scenario_of(lab, SETUPS[1]))
    options = {size: "" if size == 32 else f",batch={size}" for size in BATCHES}
    return {f"batch/{size}": Trial(scenario, CHOSEN + option) for size, option in options.items()}


def stragglers(lab: Lab) -> dict[str, Trial]:
    """Policies that watch for stragglers, at the paper's point, where a switch costs what it costs in the paper."""
    gentle = f"{CHOSEN},lr={GENTLE['half']:g}"
    return {
        **trained_scenes(lab, TRAINED, CHOSEN),
        **{f"half/{key}": trial for key, trial in trained_scenes(lab, GENTLE_SCENES, gentle).items()},
    }


def trained_scenes(lab: Lab, scenes: Mapping[str, Sequence[str]], within: str) -> dict[str, Trial]:
    plain = scenario_of(lab, SETUPS[1])
    return {
        f"{scene}/{name}": Trial(with_stragglers(plain, scene), STRAGGLERS[name].format(within))
        for scene, names in scenes.items()
        for name in names
    }


def with_stragglers(scenario: Scenario, scene: str) -> Scenario:
    faults = Faults(random_stragglers=[SCENES[scene]])
    return msgspec.structs.replace(scenario, faults=faults, switch_cost_s=SWITCH_COST_S)


def timed(scenario: Scenario) -> Scenario:
    assert scenario.training is not None, "as scenario_of makes it"
    workload = TimingWorkload(batch_size=scenario.training.batch_size, samples=scenario.training.samples or SAMPLES)
    return msgspec.structs.replace(scenario, training=None, workload=workload)


def scenario_of(lab: Lab, setup: Setup, **training: Any) -> Scenario:
    """A setup at the size of a laptop, with settings of its own; quick: on the embedded digits."""
    return Scenario(
        name=f"sync-switch-{setup.workers}",
        devices=[Device(count=setup.workers, compute_s=setup.compute_s, bandwidth_gbps=10.0)],
        compute=Compute(distribution="normal", deviation=0.05),
        network=Network(message_bytes=2e6, server_gbps=10.0, shards=setup.workers, combine_s=COMBINE_S),
        training=msgspec.structs.replace(training_of(lab, setup), **training),
    )


def training_of(lab: Lab, setup: Setup) -> TrainingConfig:
    samples = 3_200 if lab.quick else SAMPLES
    return TrainingConfig(
        task="digits" if lab.quick else "fashion-mnist",
        data=None if lab.quick else lab.data,
        train_samples=None if lab.quick else 20_000,
        model="mlp",
        batch_size=32,
        learning_rate=setup.rate,
        momentum=0.9,
        schedule="step",
        decay_at=(0.5, 0.75),
        samples=samples,
        eval_every_samples=samples // EVALUATIONS,
    )
