"""Runs that test the reasons at convergence on the page on SelSync: each changes one thing that a reason names."""

from collections.abc import Iterator, Sequence
from typing import Any

from polyrhythm.report.document import Grid
from polyrhythm.telemetry.result import RunResult
from polyrhythm_experiments.reproduce.convergence import (
    PATIENCE,
    Score,
    accuracy,
    first_at,
    last_score,
    mean_score,
)
from polyrhythm_experiments.reproduce.figures import Measured, difference, mean_text, over_seeds, percent, ratio, times
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial
from polyrhythm_experiments.reproduce.selsync.causes import lssr
from polyrhythm_experiments.reproduce.selsync.settings import SETTINGS, FixedRate, fixed, place

SELDOM = "fedavg:1,2"
"""FedAvg that exchanges as seldom as the paper's (1, 0.25) with VGG11."""
SLOWER = 4
"""The rate is divided by this."""
CHANGED = "MLP, SGD"
"""Where more is changed, because it takes the least time."""
DECAY: dict[str, Any] = {"schedule": "step", "decay_at": (0.75,)}
DECAY_STEPS = 2_000
DECAYED = ("BSP", "SelSync delta = 0.3", "SelSync delta = 0.5")
FEWER, LARGER = "4 workers", "mini-batches of 128"


def converged_cause_trials(lab: Lab) -> dict[str, Trial]:
    found = {place(title, "slower"): patient(lab, slower(setting), "bsp") for title, setting in SETTINGS.items()}
    found |= {place(title, "seldom"): patient(lab, setting, SELDOM) for title, setting in SETTINGS.items()}
    for name in DECAYED:
        policy = SETTINGS[CHANGED].policy(name)
        found[f"{place(CHANGED, name)}/decayed"] = Trial(fixed(lab, decayed(SETTINGS[CHANGED]), policy), policy)
    ours = "SelSync delta = 0.3"
    return found | {place(CHANGED, what): patient(lab, each, each.policy(ours)) for what, each in changed()}


def patient(lab: Lab, setting: FixedRate, policy: str) -> Trial:
    return Trial(fixed(lab, setting, policy), policy, until="accuracy")


def slower(setting: FixedRate) -> FixedRate:
    """The same with a smaller rate.

    >>> slower(SETTINGS["MLP, SGD"]).training
    {'learning_rate': 0.005}
    """
    return at_rate(setting, 1 / SLOWER)


def at_rate(setting: FixedRate, factor: float) -> FixedRate:
    """At so many times its rate."""
    return setting._replace(training=setting.training | {"learning_rate": factor * setting.training["learning_rate"]})


def decayed(setting: FixedRate) -> FixedRate:
    """So many steps whatever happens, the last of them at a tenth of the rate."""
    return setting._replace(training=setting.training | DECAY, steps=DECAY_STEPS)


def changed() -> Iterator[tuple[str, FixedRate]]:
    """What is said to set how often Delta fires, changed one at a time; the smoothing factor stays."""
    setting = SETTINGS[CHANGED]._replace(factor=SETTINGS[CHANGED].workers / 100)
    yield FEWER, setting._replace(workers=4)
    yield LARGER, setting._replace(training=setting.training | {"batch_size": 128})


def often_note(runs: Results) -> str:
    """What workers and mini-batches have to do with the LSSR."""
    shares = [mean_text(lssr(runs[place(CHANGED, what)])) for what in ("SelSync delta = 0.3", FEWER, LARGER)]
    return (
        f"Workers and mini-batches: {CHANGED} at delta 0.3 has {shares[0]}, with {FEWER} {shares[1]}, with {LARGER} "
        f"{shares[2]}."
    )


def rate_note(runs: Results, title: str, name: str) -> str:
    """What is left of the difference to BSP at a smaller rate of BSP, and with a decay for both."""
    ours, base = runs[place(title, name)], runs[place(title, "slower")]
    tried = [f"against BSP at 1/{SLOWER} of the rate {mean_text(difference(last_score(ours), last_score(base)))}"]
    if title == CHANGED:
        ours, base = (runs[f"{place(title, each)}/decayed"] for each in (name, "BSP"))
        tried.append(
            f"with a tenth of the rate from {100 * DECAY['decay_at'][0]:g} % of {DECAY_STEPS:,} steps for both "
            f"{mean_text(difference(end_scores(ours), end_scores(base)))}"
        )
    return f"The fixed rate: {', '.join(tried)}."


def seldom_note(runs: Results, title: str) -> str:
    """What FedAvg loses if it exchanges as seldom as in the paper."""
    fed, base = runs[place(title, "seldom")], runs[place(title, "BSP")]
    less = mean_text(difference(last_score(fed), last_score(base)))
    return f"The exchanges: with E = 2 instead, an LSSR of {mean_text(lssr(fed))}, it is {less}."


def end_scores(runs: Runs, score: Score = accuracy) -> list[float | None]:
    """The mean of each seed's last evaluations; None if it diverged."""
    return [None if run.status == "diverged" else mean_score(run.curve[-PATIENCE:], score) for run in runs]


def levels(runs: Runs, base: Runs, score: Score = accuracy) -> list[tuple[float, float] | None]:
    """Samples and seconds at which each seed has what BSP has at convergence; None if it never does."""
    return [
        None if level is None else first_at(run, level, score)
        for run, level in zip(runs, last_score(base, score), strict=True)
    ]


def level_note(ours: Runs, base: Runs, score: Score = accuracy) -> str:
    """Steps and time to BSP's own result, whether or not it goes on from there."""
    groups = [levels(runs, base, score) for runs in (ours, base)]
    samples, spans = ([[None if at is None else at[k] for at in group] for group in groups] for k in (0, 1))
    steps, soon = ratio(samples[0], samples[1]), ratio(spans[1], spans[0], times)
    if steps.value is None:
        return f"It has BSP's result with {len(groups[0]) - groups[0].count(None)} of {len(ours)} seeds."
    return f"It has BSP's result in {mean_text(steps)} the steps, {mean_text(soon)} sooner."


def step_note(ours: Runs, base: Runs) -> str:
    """What exchanges cost."""
    return f"A step of BSP takes {mean_text(ratio(step_s(base), step_s(ours)))} as long."


def step_s(runs: Sequence[RunResult]) -> list[float | None]:
    """Seconds of a step of all workers in the mean."""
    return [run.duration_s * run.workers / run.steps if run.steps else None for run in runs]


def by_change(runs: Results) -> Grid:
    """LSSR and accuracy of the runs that test a reason."""
    cells = [[what, *map(str, change_cells(each))] for what, each in tested(runs)]
    return Grid("Runs that test a reason", ("", "LSSR", "accuracy"), cells)


def tested(runs: Results) -> Iterator[tuple[str, Runs]]:
    """Each of them with what was changed."""
    for title in SETTINGS:
        yield f"{title}, BSP at 1/{SLOWER} of the rate", runs[place(title, "slower")]
        yield f"{title}, FedAvg (1, 2)", runs[place(title, "seldom")]
    for name in DECAYED:
        yield f"{CHANGED}, {name}, decayed", runs[f"{place(CHANGED, name)}/decayed"]
    for what in (FEWER, LARGER):
        yield f"{CHANGED}, SelSync delta = 0.3, {what}", runs[place(CHANGED, what)]


def change_cells(runs: Runs) -> list[Measured]:
    return [lssr(runs), over_seeds(end_scores(runs), percent)]
