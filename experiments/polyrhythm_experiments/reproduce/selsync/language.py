"""Table 1 of the paper on SelSync for a language model: perplexity at convergence."""

from typing import Any

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.sim import Scenario
from polyrhythm.telemetry.result import RunResult
from polyrhythm_experiments.reproduce.convergence import GAIN, PATIENCE, last_perplexity, log_likelihood, perplexity
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
from polyrhythm_experiments.reproduce.selsync.converged import (
    Published,
    sooner,
    speed_note,
    steps_of,
    steps_over,
)
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
PAPER = {
    "delta = 0.3": Published("0.725", "-0.11", "1.38x", "2.42x"),
    "delta = 0.5": Published("0.733", "-0.05", "1.65x", "2.06x"),
    f"LSSR = {LSSR}": Published("0.725", "-0.11", "1.38x", "2.42x"),
}


def language_trials(lab: Lab) -> dict[str, Trial]:
    path = text_file(lab)
    descent = reading(lab, "bsp", path, optimizer="SGD", learning_rate=PAPER_RATE)
    return {
        **{
            f"language/{name}": Trial(reading(lab, policy, path), policy, until="loss")
            for name, policy in METHODS.items()
        },
        f"language/{DESCENT}": Trial(descent, "bsp", until="loss"),
    }


def reading(lab: Lab, policy: str, path: str, **training: Any) -> Scenario:
    """A small Transformer on the words of a file."""
    settings = {"optimizer": "Adam", "learning_rate": RATE, **training}
    return cluster(
        lab,
        STEPS,
        WORKERS,
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
        batch_size=BATCH,
        train_samples=SAMPLES,
        test_samples=5 if lab.quick else TEST_SAMPLES,
        **settings,
    )


def language_section(runs: Results) -> DocumentSection:
    group = {name: runs[f"language/{name}"] for name in METHODS}
    base, fed = group["BSP"], group["FedAvg (1, 0.25)"]
    ours = [name for name in METHODS if name.startswith("SelSync")]
    rows = [row for name in ours for row in rows_of(name.removeprefix("SelSync "), base, group[name])]
    what = "perplexity, FedAvg (1, 0.25), less BSP's"
    rows.append(ClaimRow(what, "table 1", "-0.06", less(fed, base), less_note(fed, base)))
    cells = [
        [name, *map(str, cells_of(each, base))]
        for name, each in {**group, DESCENT: runs[f"language/{DESCENT}"]}.items()
    ]
    headings = ("method", "LSSR", "perplexity", "difference to BSP", "steps to convergence", "sooner")
    return findings(
        "A language model: perplexity", LANGUAGE_TEXT, rows, [Grid("Table 1", headings, cells)], [plot(group)]
    )


LANGUAGE_TEXT = (
    f"The validation part of WikiText-2 by words, of which the {WORDS:,} most frequent are told apart: {SAMPLES:,} "
    f"samples of 35 words to learn from, {TEST_SAMPLES} of its last tenth to test. A Transformer of two layers, 64 "
    f"wide, with two heads; {WORKERS} workers with mini-batches of {BATCH}, smoothing factor {FACTOR:g}. Adam at the "
    f"fixed rate of {RATE:g}; the last row of the table has the paper's SGD at {PAPER_RATE:g} without its decay. Each "
    f"run has {STEPS} steps and at most 40 evaluations, which wait for an exchange. Perplexity is exp of the mean "
    f"cross-entropy of a test word. A run has converged when the mean cross-entropy of {PATIENCE} evaluations is less "
    f"than {GAIN:g} below that of the {PATIENCE} before. One method lets "
    "delta follow the paper's LSSR."
)


def rows_of(of: str, base: Runs, ours: Runs) -> list[ClaimRow]:
    said = PAPER[of]
    steps, soon = steps_over(ours, base, log_likelihood), sooner(ours, base, log_likelihood)
    why = speed_note(ours, base, log_likelihood)
    return [
        ClaimRow(f"LSSR reached, Transformer, {of}", "table 1", said.lssr, lssr(ours)),
        ClaimRow(f"perplexity less BSP's, {of}", "table 1", said.gain, less(ours, base), less_note(ours, base)),
        ClaimRow(f"steps to convergence over BSP's, Transformer, {of}", "table 1", said.steps, steps),
        ClaimRow(f"sooner at convergence, Transformer, {of}", "table 1", said.sooner, soon, why),
    ]


def less(ours: Runs, base: Runs) -> Measured:
    return difference(last_perplexity(ours), last_perplexity(base), signed)


def less_note(ours: Runs, base: Runs) -> str:
    """The difference to BSP at the end of the runs."""
    ends = [[end_perplexity(run) for run in group] for group in (ours, base)]
    return f"Over the last {PATIENCE} evaluations {mean_text(difference(ends[0], ends[1], signed))}."


def end_perplexity(run: RunResult) -> float | None:
    return None if run.status == "diverged" else perplexity(run.curve[-PATIENCE:])


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
