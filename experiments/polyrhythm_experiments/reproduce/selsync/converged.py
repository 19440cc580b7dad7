"""Table 1 of the paper on SelSync, run until accuracy stands still: with SGD, and with Adam."""

from collections.abc import Mapping
from typing import NamedTuple

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm_experiments.reproduce.convergence import (
    GAIN,
    PATIENCE,
    Score,
    accuracy,
    converged_s,
    converged_samples,
    last_score,
)
from polyrhythm_experiments.reproduce.curves import accuracy_plot
from polyrhythm_experiments.reproduce.figures import (
    Measured,
    difference,
    over_seeds,
    percent,
    plain,
    ratio,
    times,
)
from polyrhythm_experiments.reproduce.lab import Results, Runs
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.selsync.causes import lssr
from polyrhythm_experiments.reproduce.selsync.converged_causes import (
    by_change,
    level_note,
    often_note,
    rate_note,
    seldom_note,
    step_note,
)
from polyrhythm_experiments.reproduce.selsync.settings import METHODS, SETTINGS, FixedRate, place

DELTAS = ("0.3", "0.5")
SETTING_HEADINGS = ("", "rate", "workers", "steps at most", "an evaluation in", "images", "test images", "factor")


class Published(NamedTuple):
    """What table 1 has of SelSync at one delta."""

    lssr: str
    gain: str
    steps: str
    sooner: str


PAPER = {
    ("SGD", "0.3"): Published("0.829 ResNet101, 0.912 VGG11", "+0.1 pt, +0.4 pt", "1.85x, 6.70x", "2.03x, 6.16x"),
    ("SGD", "0.5"): Published("0.846 ResNet101, 0.937 VGG11", "+0.1 pt, +0.4 pt", "2.33x, 7.52x", "1.67x, 13.75x"),
    ("Adam", "0.3"): Published("0.954 AlexNet", "+1.6 pt", "0.90x", "4.62x"),
    ("Adam", "0.5"): Published("0.966 AlexNet", "+0.8 pt", "1.00x", "4.63x"),
}
FEDAVG = {"SGD": "+0.1 pt ResNet101, -3.3 pt VGG11", "Adam": "-8.0 pt AlexNet"}
"""FedAvg (1, 0.25) less BSP in table 1."""


def converged_section(runs: Results) -> DocumentSection:
    groups = {title: {name: runs[place(title, name)] for name in METHODS} for title in SETTINGS}
    rows = [row for title, group in groups.items() for row in rows_of(runs, title, group)]
    tables = [by_method(title, group) for title, group in groups.items()]
    figures = [accuracy_plot(key_of(title), title, CAPTION, group) for title, group in groups.items()]
    return findings(
        "Table 1 to convergence", CONVERGED_TEXT, rows, [settings_table(SETTINGS), *tables, by_change(runs)], figures
    )


def key_of(title: str) -> str:
    """Of a figure.

    >>> key_of("MLP, SGD")
    'converged-mlp-sgd'
    """
    return f"converged-{title.lower().replace(', ', '-')}"


def settings_table(settings: Mapping[str, FixedRate]) -> Grid:
    cells = [[title, *setting_cells(each)] for title, each in settings.items()]
    return Grid("What was trained", SETTING_HEADINGS, cells)


def setting_cells(setting: FixedRate) -> list[str]:
    sizes = [f"{number:,}" for number in (setting.images, setting.test_images)]
    lengths = [str(setting.workers), f"{setting.steps:,}", f"{setting.every} steps"]
    factor = setting.workers / 100 if setting.factor is None else setting.factor
    return [f"{setting.training['learning_rate']:g}", *lengths, *sizes, f"{factor:g}"]


CAPTION = "Test accuracy against virtual time, first seed."
CONVERGED_TEXT = (
    "The paper runs each model until its accuracy does not improve any further, and does not say how that is seen. "
    "Here a run is evaluated once an epoch, or at the next exchange if replicas differ, and ends when the mean of "
    f"{PATIENCE} evaluations is less than {100 * GAIN:g} pt above that of the {PATIENCE} before. Its accuracy is the "
    f"mean of the last {PATIENCE}. Steps, evaluations and this criterion were chosen once, by what a gradient costs, "
    "before any of these runs. A reason is told by a run that changes it: where the number hardly moves, it is none. "
    "Fashion-MNIST at a fixed rate; the paper decays that of SGD. SGD has momentum 0.9. The "
    "factor is that of Delta's mean."
)


def rows_of(runs: Results, title: str, group: Results) -> list[ClaimRow]:
    """The claims of table 1 for one setting."""
    found: list[ClaimRow] = []
    for delta in DELTAS:
        name, said = f"SelSync delta = {delta}", PAPER[SETTINGS[title].optimizer, delta]
        notes = often_note(runs), rate_note(runs, title, name)
        found += delta_rows(f"{title}, delta {delta}", said, group[name], group["BSP"], *notes)
    return [*found, fed_row(title, SETTINGS[title], group, seldom_note(runs, title))]


def fed_row(title: str, setting: FixedRate, group: Results, why: str) -> ClaimRow:
    what, said = f"accuracy, FedAvg (1, 0.25), less BSP's, {title}", FEDAVG[setting.optimizer]
    less = difference(last_score(group["FedAvg (1, 0.25)"]), last_score(group["BSP"]))
    return ClaimRow(what, "table 1", said, less, why)


def delta_rows(of: str, said: Published, ours: Runs, base: Runs, often: str, gained: str) -> list[ClaimRow]:
    """The claims for SelSync at one delta.

    Args:
        of: model, optimizer and delta.
        said: by the paper.
        ours, base: runs of SelSync, and of BSP.
        often: why it exchanges as often as it does.
        gained: why its accuracy differs from BSP's.
    """
    gain, steps = difference(last_score(ours), last_score(base)), steps_over(ours, base)
    return [
        ClaimRow(f"LSSR, {of}", "table 1", said.lssr, lssr(ours), often),
        ClaimRow(f"accuracy less BSP's, {of}", "table 1", said.gain, gain, gained),
        ClaimRow(f"steps to convergence over BSP's, {of}", "table 1", said.steps, steps, level_note(ours, base)),
        ClaimRow(f"sooner at convergence, {of}", "table 1", said.sooner, sooner(ours, base), step_note(ours, base)),
    ]


def steps_over(ours: Runs, base: Runs, score: Score = accuracy) -> Measured:
    steps = [[converged_samples(run, score) for run in group] for group in (ours, base)]
    return ratio(steps[0], steps[1])


def sooner(ours: Runs, base: Runs, score: Score = accuracy) -> Measured:
    """BSP's time to convergence over that of another method."""
    spans = [[converged_s(run, score) for run in group] for group in (base, ours)]
    return ratio(spans[0], spans[1], times)


def by_method(title: str, group: Results) -> Grid:
    base = group["BSP"]
    cells = [[name, *map(str, cells_of(runs, base))] for name, runs in group.items()]
    headings = ("method", "LSSR", "accuracy", "difference to BSP", "steps to convergence", "sooner")
    return Grid(title, headings, cells)


def cells_of(runs: Runs, base: Runs) -> list[Measured]:
    return [
        lssr(runs),
        over_seeds(last_score(runs), percent),
        difference(last_score(runs), last_score(base)),
        over_seeds(steps_of(runs), plain),
        sooner(runs, base),
    ]


def steps_of(runs: Runs, score: Score = accuracy) -> list[float | None]:
    """Steps of each worker until each seed has converged."""
    found = [(converged_samples(run, score), run.workers * run.batch_size) for run in runs]
    return [None if samples is None else samples / together for samples, together in found]
