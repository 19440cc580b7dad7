"""Table 1 of the paper on SelSync, run until accuracy stands still: a ResNet-20 on CIFAR-10."""

from collections.abc import Callable
from typing import Any

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm_experiments.reproduce.convergence import last_score
from polyrhythm_experiments.reproduce.curves import accuracy_plot
from polyrhythm_experiments.reproduce.figures import difference, mean_text
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.selsync import settings
from polyrhythm_experiments.reproduce.selsync.causes import lssr
from polyrhythm_experiments.reproduce.selsync.converged import (
    CAPTION,
    DELTAS,
    SETTING_HEADINGS,
    Published,
    by_method,
    setting_cells,
    sooner,
    steps_over,
)
from polyrhythm_experiments.reproduce.selsync.converged_causes import (
    SLOWER,
    at_rate,
    level_note,
    patient,
    slower,
    step_note,
)
from polyrhythm_experiments.reproduce.selsync.settings import METHODS, SGD, FixedRate

SEEDS = 3
"""At most; a run takes several minutes."""
NAMES = ("BSP", "SelSync delta = 0.3", "SelSync delta = 0.5")
FASTER = 4
"""The rate is multiplied by this."""
CHANGES: dict[str, Callable[[FixedRate], FixedRate]] = {
    f"BSP at 1/{SLOWER} of the rate": slower,
    f"BSP at {FASTER} times the rate": lambda setting: at_rate(setting, FASTER),
    "BSP of 1 worker": lambda setting: setting._replace(workers=1),
}
"""What is tried of BSP: each name, and what becomes of the setting."""
LOCAL = "local:20"
"""Which exchanges as often as SelSync does here, and has no Delta."""
IMAGES: dict[str, Any] = {"task": "cifar10-16", "model": "resnet20"}
SETTING = FixedRate("SGD", SGD | IMAGES, workers=4, steps=2_000, images=3_000, test_images=2_000, factor=0.16)
PAPER = {
    "0.3": Published("0.829 ResNet101", "+0.1 pt", "1.85x", "2.03x"),
    "0.5": Published("0.846 ResNet101", "+0.1 pt", "2.33x", "1.67x"),
}


def resnet_trials(lab: Lab) -> dict[str, Trial]:
    """Every method, BSP with each change, and exchanges at fixed steps."""
    setting = setting_of(lab)
    found = {place(name): patient(lab, setting, setting.policy(name)) for name in NAMES}
    found |= {place(name): patient(lab, change(setting), METHODS["BSP"]) for name, change in CHANGES.items()}
    dealt = setting._replace(training=setting.training | {"partition": "seldp"})
    return found | {place(LOCAL): patient(lab, dealt, LOCAL)}


def place(name: str) -> str:
    return settings.place("ResNet-20", name)


def setting_of(lab: Lab) -> FixedRate:
    """Quick: a convolutional network on the digits."""
    return SETTING._replace(training=SGD | {"model": "cnn"}) if lab.quick else SETTING


def resnet_section(lab: Lab) -> DocumentSection:
    own = lab.with_seeds(SEEDS)
    runs = own.run(resnet_trials(own))
    group = {name: runs[place(name)] for name in (*NAMES, *CHANGES, LOCAL)}
    setting = Grid("What was trained: ResNet-20", SETTING_HEADINGS, [["ResNet-20, SGD", *setting_cells(SETTING)]])
    return findings(
        "Table 1 to convergence: a ResNet-20 on CIFAR-10",
        text_of(own),
        [row for delta in DELTAS for row in delta_rows(group, delta)],
        [setting, by_method("ResNet-20, SGD", group)],
        [accuracy_plot("converged-resnet-20-sgd", "ResNet-20, SGD", CAPTION, group)],
    )


def delta_rows(group: Results, delta: str) -> list[ClaimRow]:
    said, of = PAPER[delta], f"ResNet-20, delta {delta}"
    ours, base = group[f"SelSync delta = {delta}"], group["BSP"]
    gain, steps = difference(last_score(ours), last_score(base)), steps_over(ours, base)
    return [
        ClaimRow(f"LSSR, {of}", "table 1", said.lssr, lssr(ours), delta_note(group)),
        ClaimRow(f"accuracy less BSP's, {of}", "table 1", said.gain, gain, gain_note(group, delta)),
        ClaimRow(f"steps to convergence over BSP's, {of}", "table 1", said.steps, steps, level_note(ours, base)),
        ClaimRow(f"sooner at convergence, {of}", "table 1", said.sooner, sooner(ours, base), step_note(ours, base)),
    ]


def gain_note(group: Results, delta: str) -> str:
    """What is left of it beside BSP with each change, and beside exchanges at fixed steps."""
    ours = last_score(group[f"SelSync delta = {delta}"])
    left = [f"{mean_text(difference(ours, last_score(group[name])))} against {name}" for name in (*CHANGES, LOCAL)]
    return f"It is {', '.join(left)}. What is left is not known."


def delta_note(group: Results) -> str:
    """What delta changes, which is all that was tried on this network."""
    shares = [f"{lssr(group[f'SelSync delta = {delta}'])} at delta {delta}" for delta in DELTAS]
    return f"Not known. It is {' and '.join(shares)}."


def text_of(lab: Lab) -> str:
    task = lab.task("CIFAR-10, each image averaged down from 32x32 to 16x16 pixels")
    return (
        f"{task}. The network has 20 layers, the paper's 101: 0.27 M parameters, batch normalisation. The statistics "
        "of the latter stay with each worker under BSP and are averaged along with replicas; an evaluation takes their "
        "mean. Images are not shifted or mirrored. A run ends as those above, and the rate is fixed, which the paper "
        f"decays. Seeds: {len(lab.seeds)}. FedAvg is left out for the time that it takes."
    )
