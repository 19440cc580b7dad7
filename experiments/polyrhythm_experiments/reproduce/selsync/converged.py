"""Table 1 of the paper on SelSync, run until accuracy stands still: with SGD, and with Adam."""

from typing import Any, NamedTuple

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.sim import Scenario
from polyrhythm.telemetry.result import RunResult
from polyrhythm_experiments.reproduce.convergence import (
    GAIN,
    PATIENCE,
    Score,
    accuracy,
    converged_s,
    converged_samples,
    last_score,
    mean_score,
)
from polyrhythm_experiments.reproduce.curves import accuracy_plot
from polyrhythm_experiments.reproduce.figures import (
    Measured,
    difference,
    mean_text,
    over_seeds,
    percent,
    plain,
    ratio,
    times,
)
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.selsync.causes import durations, lssr
from polyrhythm_experiments.reproduce.selsync.trials import cluster

METHODS = {
    "BSP": "bsp",
    "FedAvg (1, 0.25)": "fedavg:1,0.25",
    "SelSync delta = 0.3": "selsync:0.3",
    "SelSync delta = 0.5": "selsync:0.5",
}
DELTAS = ("0.3", "0.5")


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
    return cluster(lab, setting.steps, setting.workers, setting.every, **given, **setting.training)


def converged_section(runs: Results) -> DocumentSection:
    groups = {title: {name: runs[place(title, name)] for name in METHODS} for title in SETTINGS}
    rows = [row for title, group in groups.items() for row in rows_of(title, group)]
    tables = [by_method(title, group) for title, group in groups.items()]
    figures = [accuracy_plot(key_of(title), title, CAPTION, group) for title, group in groups.items()]
    return findings("Table 1 to convergence", CONVERGED_TEXT, rows, [settings_table(), *tables], figures)


def key_of(title: str) -> str:
    """Of a figure.

    >>> key_of("MLP, SGD")
    'converged-mlp-sgd'
    """
    return f"converged-{title.lower().replace(', ', '-')}"


def settings_table() -> Grid:
    headings = ("", "rate", "workers", "steps", "images", "test images", "factor of Delta's mean")
    return Grid("What was trained", headings, [[title, *setting_cells(each)] for title, each in SETTINGS.items()])


def setting_cells(setting: FixedRate) -> list[str]:
    numbers = (setting.workers, setting.steps, setting.images, setting.test_images)
    factor = setting.workers / 100 if setting.factor is None else setting.factor
    return [f"{setting.training['learning_rate']:g}", *(f"{number:,}" for number in numbers), f"{factor:g}"]


CAPTION = "Test accuracy against virtual time, first seed."
CONVERGED_TEXT = (
    "Fashion-MNIST at a fixed rate; the paper decays that of SGD. SGD has momentum 0.9. A run has at most 40 "
    "evaluations, which wait for an exchange, and has converged when the mean of "
    f"{PATIENCE} of them is less than {100 * GAIN:g} pt above that of the {PATIENCE} before; its accuracy is the mean "
    f"of the last {PATIENCE} until then. A run that does not get there within its steps has the mean "
    f"of its last {PATIENCE} instead, so a difference may still change. LSSR is of the whole run."
)


def rows_of(title: str, group: Results) -> list[ClaimRow]:
    """The claims of table 1 for one setting."""
    base, fed = group["BSP"], group["FedAvg (1, 0.25)"]
    what = f"accuracy, FedAvg (1, 0.25), less BSP's, {title}"
    said = FEDAVG[SETTINGS[title].optimizer]
    return [
        *(row for delta in DELTAS for row in delta_rows(title, delta, base, group[f"SelSync delta = {delta}"])),
        ClaimRow(what, "table 1", said, difference(last_score(fed), last_score(base)), less_note(fed, base)),
    ]


def delta_rows(title: str, delta: str, base: Runs, ours: Runs) -> list[ClaimRow]:
    said, of = PAPER[SETTINGS[title].optimizer, delta], f"{title}, delta {delta}"
    gain = difference(last_score(ours), last_score(base))
    return [
        ClaimRow(f"LSSR, {of}", "table 1", said.lssr, lssr(ours)),
        ClaimRow(f"accuracy less BSP's, {of}", "table 1", said.gain, gain, less_note(ours, base)),
        ClaimRow(f"steps to convergence over BSP's, {of}", "table 1", said.steps, steps_over(ours, base)),
        ClaimRow(f"sooner at convergence, {of}", "table 1", said.sooner, sooner(ours, base), speed_note(ours, base)),
    ]


def less_note(ours: Runs, base: Runs) -> str:
    """The difference to BSP in other ways of comparing them."""
    ends = difference([end_accuracy(run) for run in ours], [end_accuracy(run) for run in base])
    best = difference([run.best_accuracy for run in ours], [run.best_accuracy for run in base])
    return f"Over the last {PATIENCE} evaluations {mean_text(ends)}, between the best {mean_text(best)}."


def end_accuracy(run: RunResult) -> float | None:
    return None if run.status == "diverged" else mean_score(run.curve[-PATIENCE:])


def speed_note(ours: Runs, base: Runs, score: Score = accuracy) -> str:
    """What a speedup comes from: the time of equal steps, and the steps that are made."""
    equal, steps = (ratio(durations(base), durations(ours)), steps_over(ours, base, score))
    return f"Equal steps take BSP {mean_text(equal)} as long. The steps to convergence over BSP's: {mean_text(steps)}."


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
