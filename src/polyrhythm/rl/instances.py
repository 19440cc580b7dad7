"""Random training jobs: the generator of the RLP paper (section 4) and harder families.

A family is a distribution over jobs; an instance is one draw of it, a value from which the whole job follows.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np

from polyrhythm.errors import UsageError, did_you_mean
from polyrhythm.sim.cluster.compute import Compute, Sleep, stream

STRAGGLE = 0.3
"""Probability that a worker sleeps in every step."""
BASE_S = (4.0, 5.5)
"""Range of a worker's mean time for one mini-batch, in seconds."""
SLEEP_S = (4.0, 18.0)
"""Range of a sleeper's mean sleep."""
DEVIATION = 0.25
"""Standard deviation of a sleep as a share of its mean."""
JITTER = 0.05
"""The same of the computation."""


@dataclass(frozen=True, slots=True)
class Family:
    """A distribution over jobs.

    Args:
        name: key in `FAMILIES`.
        hidden: numbers of hidden layers to choose from.
        learning_rate: of each pushed gradient.
        target: validation accuracy that ends a job.
        workers: numbers of workers to choose from.
        stragglers: how many sleep: fewest and most; None: each with probability 0.3.
        data: data set.
        width: units of each hidden layer.
        limit_s: virtual time at which a job that has not reached its target is given up; it counts as its time.
        each_step: in each step each worker sleeps with probability 0.3; otherwise stragglers sleep in every step.
    """

    name: str
    hidden: tuple[int, ...] = (1,)
    learning_rate: float = 0.15
    target: float = 0.9
    workers: tuple[int, ...] = (10,)
    stragglers: tuple[int, int] | None = None
    data: str = "digits"
    width: int = 64
    limit_s: float = 1500.0
    each_step: bool = False


@dataclass(frozen=True, slots=True)
class Instance:
    """One job: all that is random about it follows from `seed`.

    Args:
        base_s, sleep_s: mean time of a mini-batch and mean sleep of each worker, in seconds.
    """

    family: Family
    seed: int
    hidden: int
    base_s: tuple[float, ...]
    sleep_s: tuple[float, ...]

    @property
    def workers(self) -> int:
        return len(self.base_s)

    @property
    def stragglers(self) -> int:
        return sum(sleep > 0 for sleep in self.sleep_s)

    def durations(self) -> list[Iterator[float]]:
        rng = np.random.default_rng((self.seed, 1))
        seeds = rng.spawn(self.workers)
        per: Literal["run", "step"] = "step" if self.family.each_step else "run"
        return [worker_stream(*each, per) for each in zip(self.base_s, self.sleep_s, seeds, strict=True)]


def worker_stream(
    base_s: float, sleep_s: float, rng: np.random.Generator, per: Literal["run", "step"]
) -> Iterator[float]:
    """Durations of the steps of a worker that sleeps in every one of them, or in each with probability 0.3."""
    share = STRAGGLE if per == "step" else 1.0
    sleep = Sleep(probability=share, mean_s=sleep_s, deviation=DEVIATION, per=per) if sleep_s else None
    return stream(Compute(distribution="normal", deviation=JITTER, sleep=sleep), base_s, rng)


def draw(family: Family, seed: int) -> Instance:
    """The instance of a family with this seed.

    >>> draw(FAMILIES["paper"], 0) == draw(FAMILIES["paper"], 0)
    True
    >>> draw(FAMILIES["stragglers-1"], 3).stragglers
    1
    """
    rng = np.random.default_rng((seed, 0))
    workers = int(rng.choice(family.workers))
    hidden = int(rng.choice(family.hidden))
    base = rng.uniform(*BASE_S, workers)
    sleep = rng.uniform(*SLEEP_S, workers)
    asleep = (rng.random(workers) < STRAGGLE) | family.each_step
    if family.stragglers is not None:
        few, most = (min(count, workers) for count in family.stragglers)
        asleep = rng.permutation(workers) < rng.integers(few, most, endpoint=True)
    return Instance(family, seed, hidden, tuple(base.tolist()), tuple((sleep * asleep).tolist()))


OTHERS = (3, 4, 6, 7, 9, 10, 11, 12)
"""Numbers of workers to learn from; 2, 5 and 8 are held out."""

FAMILIES = {
    family.name: family
    for family in (
        Family("paper", hidden=(0, 1, 2, 3), learning_rate=0.01, target=0.8),
        Family("staleness"),
        Family("moderate", hidden=(1, 2), learning_rate=0.05, target=0.85),
        Family("hidden-0", hidden=(0,), learning_rate=0.6),
        Family("hidden-2", hidden=(2,), learning_rate=0.1),
        Family("hidden-3", hidden=(3,), learning_rate=0.08, target=0.85),
        Family("hidden-4", hidden=(4,), learning_rate=0.03, target=0.8),
        Family("hidden-6", hidden=(6,), learning_rate=0.02, target=0.8),
        Family("workers-2", workers=(2,)),
        Family("workers-5", workers=(5,)),
        Family("workers-8", workers=(8,)),
        Family("workers-other", workers=OTHERS),
        Family("stragglers-0", stragglers=(0, 0)),
        Family("stragglers-1", stragglers=(1, 1)),
        Family("stragglers-several", stragglers=(3, 5)),
        Family("stragglers-other", workers=OTHERS, stragglers=(0, 6)),
        Family("paper-other", hidden=(0, 1, 2, 3), learning_rate=0.01, target=0.8, workers=OTHERS, stragglers=(0, 6)),
        Family("fashion", learning_rate=0.1, target=0.7, data="fashion-mnist"),
        *(
            Family(f"combined-{n}", hidden=(6,), learning_rate=0.02, target=0.65, workers=(n,), data="fashion-mnist")
            for n in (2, 5, 8)
        ),
        Family("fashion-paper", hidden=(0, 1, 2, 3), learning_rate=0.01, target=0.65, data="fashion-mnist"),
        Family(
            "fashion-28",
            hidden=(0, 1, 2, 3),
            learning_rate=0.01,
            target=0.7,
            data="fashion-mnist-28",
            width=256,
            limit_s=3000.0,
        ),
    )
}
"""Families by name. "staleness" is where K-groups beat ASP: 1 hidden layer at a rate near the edge of stability, which
for digits with 64 inputs is 0.15 and for Fashion-MNIST with 196 is 0.1. "fashion-28" is the paper's own setting, with
Fashion-MNIST for MNIST and a target that is reached after as many gradients as in its table 1."""


def family_named(name: str) -> Family:
    """A family of `FAMILIES`."""
    if name not in FAMILIES:
        raise UsageError(f"unknown family {name!r}: {did_you_mean(name, FAMILIES)}")
    return FAMILIES[name]
