"""What is run for the page on Sync-Switch: its three setups, with a small model on Fashion-MNIST for ResNets."""

from dataclasses import dataclass

import msgspec

from polyrhythm.sim import Compute, Device, Faults, Network, RandomStragglers, Scenario, TimingWorkload
from polyrhythm.training.config import TrainingConfig
from polyrhythm_experiments.reproduce.lab import Lab, Trial

SAMPLES = 100_000
"""Workload; the learning rate falls to a tenth at 50 % of it and to a hundredth at 75 %."""


@dataclass(frozen=True)
class Setup:
    """One of the paper's setups, and what stands for it here.

    Args:
        paper: as the paper has it.
        workers: as the paper has them.
        rate: of one mini-batch.
        compute_s: of one mini-batch.
        shares: switch points that are tried.
        chosen: the paper's switch point.
    """

    paper: str
    workers: int
    rate: float
    compute_s: float
    shares: tuple[float, ...]
    chosen: float


SETUPS = {
    1: Setup("ResNet32 on CIFAR-10, 8 K80", 8, 0.006, 0.1, (0.0625, 0.125, 0.25, 0.5, 0.75), 0.0625),
    2: Setup("ResNet50 on CIFAR-100, 8 K80", 8, 0.003, 0.3, (0.125, 0.25, 0.5), 0.125),
    3: Setup("ResNet32 on CIFAR-10, 16 K80", 16, 0.006, 0.1, (0.125, 0.25, 0.5), 0.5),
}

MOMENTA = {"same": "", "0": "zero", "1/n": "1/n", "2^i/n": "2^i/n", "i/n": "i/n"}
"""The momenta of figure 8(b), by the paper's names; for a switch at 25 %, where they can differ."""

BATCHES = (16, 32, 64, 128)
"""Mini-batches after the switch, figure 8(a)."""

SCENES = {
    "mild": RandomStragglers(workers=1, to_s=50, duration_s=16, extra_latency_s=0.01),
    "moderate": RandomStragglers(workers=2, occurrences=4, to_s=50, duration_s=16, extra_latency_s=0.03),
}
"""The paper's two scenes, in the time that BSP has here."""

SWITCH_COST_S = 1.8
"""The paper's 36 s of 2,100 s, in a job of 105 s."""

STRAGGLERS = {"agnostic": "{}", "greedy": "greedy:({})", "elastic": "elastic:({})"}
BOUND, LOW = "without stragglers", "elastic, floor 0.1"
"""Trials of times alone: what no policy can gain more than, and a detector that takes smaller delays seriously."""


def switch(share: float, options: str = "") -> str:
    return f"switch:bsp@{share:g},asp{options}"


def trials(lab: Lab) -> dict[str, Trial]:
    return {**setups(lab), **momenta(lab), **batches(lab), **stragglers(lab)}


def setups(lab: Lab) -> dict[str, Trial]:
    """BSP, ASP and every switch point of each setup, and the other order in the first."""
    found: dict[str, Trial] = {}
    for number, setup in SETUPS.items():
        scenario = scenario_of(lab, setup)
        policies = {"BSP": "bsp", "ASP": "asp", **{f"{share:g}": switch(share) for share in setup.shares}}
        found |= {f"{number}/{name}": Trial(scenario, policy) for name, policy in policies.items()}
    return found | {"1/ASP to BSP": Trial(scenario_of(lab, SETUPS[1]), "switch:asp@0.5,bsp")}


def momenta(lab: Lab) -> dict[str, Trial]:
    """What becomes of momentum at a switch at 25 %."""
    scenario = scenario_of(lab, SETUPS[2])
    options = {name: f",momentum={momentum}" if momentum else "" for name, momentum in MOMENTA.items()}
    return {f"momentum/{name}": Trial(scenario, switch(0.25, option)) for name, option in options.items()}


def batches(lab: Lab) -> dict[str, Trial]:
    """Mini-batches of other sizes after a switch at 6.25 %; times alone."""
    scenario = timed(scenario_of(lab, SETUPS[1]))
    options = {size: "" if size == 32 else f",batch={size}" for size in BATCHES}
    return {f"batch/{size}": Trial(scenario, switch(0.0625, option)) for size, option in options.items()}


def stragglers(lab: Lab) -> dict[str, Trial]:
    """Policies that watch for stragglers, where a switch costs what it costs in the paper, scaled to this job.

    The mild scene is of times alone.
    """
    plain = scenario_of(lab, SETUPS[1])
    found: dict[str, Trial] = {}
    for scene, faults in SCENES.items():
        scenario = msgspec.structs.replace(
            plain if scene == "moderate" else timed(plain),
            faults=Faults(random_stragglers=[faults]),
            switch_cost_s=SWITCH_COST_S,
        )
        for name, wrapper in STRAGGLERS.items():
            found[f"{scene}/{name}"] = Trial(scenario, wrapper.format(switch(0.5)))
        bare = timed(scenario) if scenario.training else scenario
        found[f"{scene}/{LOW}"] = Trial(bare, f"elastic:({switch(0.5)}),floor=0.1")
        found[f"{scene}/{BOUND}"] = Trial(msgspec.structs.replace(bare, faults=Faults()), switch(0.5))
    return found


def timed(scenario: Scenario) -> Scenario:
    assert scenario.training is not None, "as scenario_of makes it"
    workload = TimingWorkload(batch_size=scenario.training.batch_size, samples=scenario.training.samples or SAMPLES)
    return msgspec.structs.replace(scenario, training=None, workload=workload)


def scenario_of(lab: Lab, setup: Setup) -> Scenario:
    """A setup at the size of a laptop; quick: on the embedded digits."""
    samples = 3_000 if lab.quick else SAMPLES
    training = TrainingConfig(
        task="digits" if lab.quick else "fashion-mnist",
        data=None if lab.quick else lab.data,
        train_samples=None if lab.quick else 20_000,
        test_samples=None if lab.quick else 2_000,
        model="mlp",
        batch_size=32,
        learning_rate=setup.rate,
        momentum=0.9,
        schedule="step",
        decay_at=(0.5, 0.75),
        samples=samples,
        eval_every_samples=samples // 16,
    )
    return Scenario(
        name=f"sync-switch-{setup.workers}",
        devices=[Device(count=setup.workers, compute_s=setup.compute_s, bandwidth_gbps=1.0)],
        compute=Compute(distribution="normal", deviation=0.05),
        network=Network(message_bytes=2e6, server_gbps=1.0),
        training=training,
    )
