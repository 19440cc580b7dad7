"""Table 1 of the paper on SelSync for a language model: perplexity at convergence."""

from typing import Any, NamedTuple

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.sim import Scenario
from polyrhythm_experiments.reproduce.convergence import (
    GAIN,
    PATIENCE,
    last_perplexity,
    log_likelihood,
    perplexity,
)
from polyrhythm_experiments.reproduce.figures import (
    Measured,
    difference,
    mean_text,
    over_seeds,
    perplexities,
    plain,
    signed,
)
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings
from polyrhythm_experiments.reproduce.selsync.causes import lssr
from polyrhythm_experiments.reproduce.selsync.converged import Published, sooner, steps_of, steps_over
from polyrhythm_experiments.reproduce.selsync.converged_causes import SELDOM, SLOWER, level_note, step_note
from polyrhythm_experiments.reproduce.selsync.trials import cluster
from polyrhythm_experiments.reproduce.wikitext import WORDS, text_file

WORKERS, STEPS, SAMPLES = 4, 2_000, 1_000
EVERY = 10
"""Steps from an evaluation to the next."""
FACTOR, LSSR = 0.16, 0.725
"""The paper's smoothing factor, which it has from 16 workers, and its LSSR at delta 0.3."""
RATE, PAPER_RATE, BATCH = 0.003, 2.0, 10
TEST_SAMPLES = 100
METHODS = {
    "BSP": "bsp",
    "FedAvg (1, 0.25)": "fedavg:1,0.25",
    "SelSync delta = 0.3": f"selsync:0.3,factor={FACTOR}",
    "SelSync delta = 0.5": f"selsync:0.5,factor={FACTOR}",
    f"SelSync LSSR = {LSSR}": f"selsync:0.3,factor={FACTOR},lssr={LSSR}",
}
DESCENT = "BSP, SGD at the paper's rate"
SLOW, RARELY = f"BSP at 1/{SLOWER} of the rate", "FedAvg (1, 2)"
OFTEN = {"4 workers": (WORKERS, BATCH), "16 workers": (16, BATCH), "4 workers, mini-batches of 2": (WORKERS, 2)}
"""Workers and mini-batch of runs that are only asked how often they exchange."""
OFTEN_STEPS = 200
MANY, MANY_STEPS = 16, 600
"""The paper's workers, and their steps at most."""
AMONG_MANY = ("BSP", "SelSync delta = 0.3", "SelSync delta = 0.5")
PAPER = {
    "delta = 0.3": Published("0.725", "-0.11", "1.38x", "2.42x"),
    "delta = 0.5": Published("0.733", "-0.05", "1.65x", "2.06x"),
    f"LSSR = {LSSR}": Published("0.725", "-0.11", "1.38x", "2.42x"),
}


def language_trials(lab: Lab) -> dict[str, Trial]:
    path = text_file(lab)
    found = {name: Trial(reading(lab, policy, path), policy, until="loss") for name, policy in METHODS.items()}
    descent = reading(lab, "bsp", path, optimizer="SGD", learning_rate=PAPER_RATE)
    found[DESCENT] = Trial(descent, "bsp", until="loss")
    found[SLOW] = Trial(reading(lab, "bsp", path, learning_rate=RATE / SLOWER), "bsp", until="loss")
    found[RARELY] = Trial(reading(lab, SELDOM, path), SELDOM, until="loss")
    policy = METHODS["SelSync delta = 0.3"]
    for what, (workers, batch) in OFTEN.items():
        found[what] = Trial(reading(lab, policy, path, (workers, OFTEN_STEPS), batch_size=batch), policy)
    for name in AMONG_MANY:
        policy = METHODS[name]
        found[f"many/{name}"] = Trial(reading(lab, policy, path, (MANY, MANY_STEPS)), policy, until="loss")
    return {f"language/{name}": trial for name, trial in found.items()}


def reading(lab: Lab, policy: str, path: str, size: tuple[int, int] = (WORKERS, STEPS), **training: Any) -> Scenario:
    """A small Transformer on the words of a file; `size` has the workers and their steps."""
    settings = {"optimizer": "Adam", "learning_rate": RATE, "batch_size": 2 if lab.quick else BATCH, **training}
    workers, steps = size
    return cluster(
        lab,
        steps,
        workers,
        EVERY,
        task="text",
        model="transformer-small",
        data=path,
        tokens="word",
        partition="seldp" if policy.startswith("selsync") else "defdp",
        schedule="constant",
        decay_at=(),
        momentum=0.0,
        weight_decay=0.0,
        train_samples=SAMPLES,
        test_samples=5 if lab.quick else TEST_SAMPLES,
        **settings,
    )


def language_section(runs: Results) -> DocumentSection:
    group = {name: runs[f"language/{name}"] for name in METHODS}
    few = Compared(f"{WORKERS} workers", {name.removeprefix("SelSync "): each for name, each in group.items()})
    many = Compared(f"{MANY} workers", {name.removeprefix("SelSync "): runs[many_place(name)] for name in AMONG_MANY})
    rows = [row for each in (few, many) for of in each.runs if of in PAPER for row in rows_of(runs, each, of)]
    fed, what = group["FedAvg (1, 0.25)"], f"perplexity, FedAvg (1, 0.25), less BSP's, {few.title}"
    rows.append(ClaimRow(what, "table 1", "-0.06", less(fed, group["BSP"]), seldom_note(runs)))
    return findings("A language model: perplexity", LANGUAGE_TEXT, rows, tables(runs, group), [plot(group)])


class Compared(NamedTuple):
    """Methods on the same cluster, by the name that `PAPER` has for them; BSP is among them."""

    title: str
    runs: Results


def many_place(name: str) -> str:
    return f"language/many/{name}"


def tables(runs: Results, group: Results) -> list[Grid]:
    """Each method beside BSP, with as many workers each."""
    headings = ("method", "LSSR", "perplexity", "difference to BSP", "steps to convergence", "sooner")
    few = {**group, **{name: runs[f"language/{name}"] for name in (SLOW, RARELY, DESCENT)}}
    many = {name: runs[many_place(name)] for name in AMONG_MANY}
    return [
        Grid(title, headings, [[name, *map(str, cells_of(each, found["BSP"]))] for name, each in found.items()])
        for title, found in ((f"{WORKERS} workers", few), (f"{MANY} workers", many))
    ]


LANGUAGE_TEXT = (
    f"The validation part of WikiText-2 by words, of which the {WORDS:,} most frequent are told apart: {SAMPLES:,} "
    f"samples of 35 words to learn from, {TEST_SAMPLES} of its last tenth to test. A Transformer of two layers, 64 "
    f"wide, with two heads; mini-batches of {BATCH}, smoothing factor {FACTOR:g}. Adam at the fixed rate of "
    f"{RATE:g}; the last row with {WORKERS} workers has the paper's SGD at {PAPER_RATE:g} without its decay. "
    f"Perplexity is exp of the mean cross-entropy of a test word. A run is evaluated every {EVERY} steps, or at the "
    f"next exchange if replicas differ, and ends when the mean cross-entropy of {PATIENCE} evaluations is less than "
    f"{GAIN:g} below that of the {PATIENCE} before, at the latest after {STEPS:,} steps, with {MANY} workers "
    f"{MANY_STEPS:,}. So a method has {2 * PATIENCE} exchanges at least. One lets delta follow the paper's LSSR. "
    f"The runs with {MANY} workers, as many as in the paper, were added because with {WORKERS} delta hardly ever fires."
)


def rows_of(runs: Results, compared: Compared, of: str) -> list[ClaimRow]:
    said, base, ours = PAPER[of], compared.runs["BSP"], compared.runs[of]
    steps, soon = steps_over(ours, base, log_likelihood), sooner(ours, base, log_likelihood)
    further = level_note(ours, base, log_likelihood) if steps.value else seen_note(ours, base)
    what = f"{compared.title}, {of}"
    return [
        ClaimRow(f"LSSR reached, {what}", "table 1", said.lssr, lssr(ours), often_note(runs)),
        ClaimRow(
            f"perplexity less BSP's, {what}", "table 1", said.gain, less(ours, base), less_note(runs, compared, of)
        ),
        ClaimRow(f"steps to convergence over BSP's, {what}", "table 1", said.steps, steps, further),
        ClaimRow(f"sooner at convergence, {what}", "table 1", said.sooner, soon, step_note(ours, base)),
    ]


def less(ours: Runs, base: Runs) -> Measured:
    return difference(last_perplexity(ours), last_perplexity(base), signed)


def often_note(runs: Results) -> str:
    """What workers and mini-batches have to do with the LSSR."""
    shares = [f"{mean_text(lssr(runs[f'language/{what}']))} ({what})" for what in OFTEN]
    return f"Workers and mini-batches: in {OFTEN_STEPS} steps at delta 0.3 it is {', '.join(shares)}."


def less_note(runs: Results, compared: Compared, of: str) -> str:
    """What exchanges, BSP's rate, or that it is the last evaluations, have to do with the difference to BSP."""
    base, ours = compared.runs["BSP"], compared.runs[of]
    more = compared.runs.get(f"LSSR = {LSSR}")
    if more is None:
        return best_note(ours, base)
    if of.startswith("LSSR"):
        slow = runs[f"language/{SLOW}"]
        return f"BSP's rate: at 1/{SLOWER} of it for BSP it is {mean_text(less(ours, slow))}. {best_note(ours, base)}"
    return f"The exchanges: at an LSSR of {mean_text(lssr(more))} it is {mean_text(less(more, base))}."


def best_note(ours: Runs, base: Runs) -> str:
    """The difference to BSP before either learns its samples by heart."""
    best = difference(bests(ours), bests(base), signed)
    return f"Overfitting within the last {PATIENCE} evaluations: between the best it is {mean_text(best)}."


def seen_note(ours: Runs, base: Runs) -> str:
    """Why a run may not be seen to converge: it is evaluated at exchanges only."""
    counts = [len(run.curve) for run in ours]
    best, other = (mean_text(over_seeds(bests(runs), perplexities)) for runs in (ours, base))
    return (
        f"The exchanges: evaluations of a seed are {min(counts)} to {max(counts)}, the best perplexity is {best}, of "
        f"BSP {other}; for more exchanges see below."
    )


def bests(runs: Runs) -> list[float | None]:
    """The best perplexity of each seed; None if it was never evaluated."""
    return [min((perplexity([point]) for point in run.curve), default=None) for run in runs]


def seldom_note(runs: Results) -> str:
    """What FedAvg loses if it exchanges less often."""
    fed = runs[f"language/{RARELY}"]
    less_often = mean_text(less(fed, runs["language/BSP"]))
    return f"The exchanges: with E = 2 instead, an LSSR of {mean_text(lssr(fed))}, it is {less_often}."


def cells_of(runs: Runs, base: Runs) -> list[Measured]:
    return [
        lssr(runs),
        over_seeds(last_perplexity(runs), perplexities),
        less(runs, base),
        over_seeds(steps_of(runs, log_likelihood), plain),
        sooner(runs, base, log_likelihood),
    ]


def plot(group: Results) -> Chart:
    """Perplexity of the first seed against time."""
    series = [
        Series(name, [point.time_s for point in runs[0].curve], [perplexity([point]) for point in runs[0].curve])
        for name, runs in group.items()
        if runs[0].status == "ok"
    ]
    labels = ("time (s)", "test perplexity")
    return drawing("language", "Perplexity", CAPTION, labels, series, log_x=True)


CAPTION = "Test perplexity against virtual time, first seed."
