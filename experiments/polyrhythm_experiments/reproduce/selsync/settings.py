"""What is trained until accuracy stands still for the page on SelSync: two models, each with SGD and with Adam."""

from typing import Any, NamedTuple

from polyrhythm.sim import Scenario
from polyrhythm_experiments.reproduce.lab import Lab, Trial
from polyrhythm_experiments.reproduce.selsync.trials import cluster

METHODS = {
    "BSP": "bsp",
    "FedAvg (1, 0.25)": "fedavg:1,0.25",
    "SelSync delta = 0.3": "selsync:0.3",
    "SelSync delta = 0.5": "selsync:0.5",
}


class FixedRate(NamedTuple):
    """What is trained, and for how long.

    Args:
        optimizer: as table 1 has it.
        training: what differs from the hyper-parameters of the page; the rate is fixed.
        workers: of the cluster.
        steps: of each worker, at most.
        every: steps from an evaluation to the next; one in an epoch.
        images: to learn from.
        test_images: to test.
        factor: of SelSync's mean; None is n/100.
    """

    optimizer: str
    training: dict[str, Any]
    workers: int = 16
    steps: int = 4_000
    every: int = 24
    images: int = 12_000
    test_images: int = 2_000
    factor: float | None = None

    def policy(self, name: str) -> str:
        """The policy of a method."""
        own = f",factor={self.factor:g}" if self.factor and name.startswith("SelSync") else ""
        return METHODS[name] + own


SGD: dict[str, Any] = {"learning_rate": 0.02}
ADAM: dict[str, Any] = {"optimizer": "Adam", "learning_rate": 0.002, "momentum": 0.0, "weight_decay": 0.0}
CNN: dict[str, Any] = {"workers": 4, "steps": 2_000, "images": 3_000, "test_images": 1_000, "factor": 0.16}
SETTINGS = {
    "MLP, SGD": FixedRate("SGD", SGD),
    "MLP, Adam": FixedRate("Adam", ADAM),
    "CNN, SGD": FixedRate("SGD", {"model": "cnn", **SGD}, **CNN),
    "CNN, Adam": FixedRate("Adam", {"model": "cnn", **ADAM}, **CNN),
}


def converged_trials(lab: Lab) -> dict[str, Trial]:
    return {
        place(title, name): Trial(fixed(lab, setting, policy := setting.policy(name)), policy, until="accuracy")
        for title, setting in SETTINGS.items()
        for name in METHODS
    }


def place(title: str, name: str) -> str:
    return f"converged/{title}/{name}"


def fixed(lab: Lab, setting: FixedRate, policy: str) -> Scenario:
    """A subset of the images, and a rate that stays as it is."""
    given = {
        "partition": "seldp" if policy.startswith("selsync") else "defdp",
        "schedule": "constant",
        "decay_at": (),
        "train_samples": setting.images,
        "test_samples": setting.test_images,
    }
    return cluster(lab, setting.steps, setting.workers, setting.every, **(given | setting.training))
