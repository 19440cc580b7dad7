"""Families of jobs of the page: the paper's own setting beside those of `polyrhythm.rl.instances`, figure by figure."""

from dataclasses import replace
from typing import Any

from polyrhythm.rl.instances import FAMILIES, Family, Instance, draw, family_named

SETTING = "fashion-28"
"""The family that the paper's DQN was trained for, in the paper's setting."""
TRAINED = "staleness"
"""The one that the shipped policy was trained for."""
CIFAR = {"target": 0.3, "data": "cifar10"}
WORKERS = (2, 5, 8)


def like(name: str, **changes: Any) -> Family:
    """A family that differs from the paper's setting in this."""
    return replace(FAMILIES[SETTING], name=name, **changes)


OWN = {
    family.name: family
    for family in (
        FAMILIES[SETTING],
        like("fashion-28-hidden-0", hidden=(0,)),
        like("fashion-28-hidden-3", hidden=(3,)),
        like("fashion-28-stragglers-0", stragglers=(0, 0)),
        like("fashion-28-stragglers-1", stragglers=(1, 1)),
        like("fashion-28-stragglers-several", stragglers=(3, 5)),
        *(like(f"fashion-28-workers-{n}", hidden=(1,), workers=(n,)) for n in WORKERS),
        like("fashion-28-hidden-6", hidden=(6,)),
        like("cifar10", hidden=(1, 2, 3), **CIFAR),
        *(like(f"cifar10-combined-{n}", hidden=(6,), workers=(n,), **CIFAR) for n in WORKERS),
    )
}
"""The paper's setting and what its figures change in it. Logistic regression does not reach 30 % of CIFAR-10."""

ABLATED = {
    family.name: family
    for family in (
        like("one hidden layer", hidden=(1,)),
        like("rate 0.03", hidden=(1,), learning_rate=0.03),
        like("rate 0.06", hidden=(1,), learning_rate=0.06),
        like("target 0.8", hidden=(1,), target=0.8),
        like("64 units", hidden=(1,), width=64),
        like("14x14 images", hidden=(1,), data="fashion-mnist"),
        like("every worker sleeps, p = 0.3 a step", hidden=(1,), each_step=True),
    )
}
"""The setting with one hidden layer, and with one thing changed."""

TABLE = {
    family.name: family
    for family in (
        like("mean steps of table 1", hidden=(1,)),
        like("mean steps of table 1, rate 0.06", hidden=(1,), learning_rate=0.06),
    )
}
"""The setting with one hidden layer and the workers of table 1, at the paper's rate and at a higher one."""

FIGURES: dict[str, tuple[str, ...]] = {
    "Figure 2(a): jobs as in training": ("paper", TRAINED),
    "Figure 2(b): hidden layers": ("hidden-0", "hidden-3"),
    "Figure 2(c): stragglers": ("stragglers-0", "stragglers-1", "stragglers-several"),
    "Figure 3(a): workers": ("workers-2", "workers-5", "workers-8"),
    "Figure 3(b): another model, another data set": ("hidden-6", "fashion"),
    "Figure 3(c): all of it together": ("combined-2", "combined-5", "combined-8"),
}
"""At rates near the edge of stability, but for the family paper."""
OWN_FIGURES: dict[str, tuple[str, ...]] = dict(
    zip(
        FIGURES,
        (
            (SETTING,),
            ("fashion-28-hidden-0", "fashion-28-hidden-3"),
            ("fashion-28-stragglers-0", "fashion-28-stragglers-1", "fashion-28-stragglers-several"),
            tuple(f"fashion-28-workers-{n}" for n in WORKERS),
            ("fashion-28-hidden-6", "cifar10"),
            tuple(f"cifar10-combined-{n}" for n in WORKERS),
        ),
        strict=True,
    )
)
"""The same figures in the paper's setting."""

PAPER_STEPS_S = (9.17, 10.103, 4.37, 4.47, 4.57, 15.39, 22.189, 5.31, 4.97, 5.07)
"""Mean step of each worker in table 1."""
FASTEST_S, COMPUTING_S = 5.5, 4.75
"""A worker whose mean step is longer than the first computes for the second and sleeps the rest."""


def family_of(name: str) -> Family:
    return (OWN | ABLATED | TABLE).get(name) or family_named(name)


def job_of(family: Family, seed: int) -> Instance:
    return table_job(family, seed) if family.name in TABLE else draw(family, seed)


def table_job(family: Family, seed: int) -> Instance:
    """A job whose workers have the mean steps of table 1.

    >>> job = table_job(TABLE["mean steps of table 1"], 0)
    >>> job.stragglers, job.base_s[0], round(job.sleep_s[0], 2)
    (4, 4.75, 4.42)
    """
    base_s = tuple(COMPUTING_S if step_s > FASTEST_S else step_s for step_s in PAPER_STEPS_S)
    sleep_s = tuple(step_s - computing_s for step_s, computing_s in zip(PAPER_STEPS_S, base_s, strict=True))
    return Instance(family, seed, family.hidden[0], base_s, sleep_s)
