"""Table 1 of the paper on SelSync, run until accuracy stands still: a ResNet-20 on CIFAR-10."""

from collections.abc import Callable
from typing import Any

from polyrhythm.report.document import DocumentSection
from polyrhythm_experiments.reproduce.convergence import last_score
from polyrhythm_experiments.reproduce.curves import accuracy_plot
from polyrhythm_experiments.reproduce.figures import difference, mean_text
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.selsync.causes import lssr
from polyrhythm_experiments.reproduce.selsync.converged import (
    CAPTION,
    DELTAS,
    Published,
    by_method,
    delta_rows,
    fed_row,
    key_of,
    settings_table,
)
from polyrhythm_experiments.reproduce.selsync.converged import PAPER as ALL_NETWORKS
from polyrhythm_experiments.reproduce.selsync.converged_causes import (
    SLOWER,
    at_rate,
    patient,
    slower,
)
from polyrhythm_experiments.reproduce.selsync.settings import ADAM, CNN, METHODS, SGD, FixedRate, place

SEEDS = 3
"""At most; a run takes several minutes."""
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
DIGITS: dict[str, Any] = {"task": "digits", "model": "cnn"}
LENGTH = CNN | {"test_images": 2_000}
WITH_SGD, WITH_ADAM = "ResNet-20, SGD", "ResNet-20, Adam"
SETTINGS = {
    WITH_SGD: FixedRate("SGD", SGD | IMAGES, **LENGTH),
    WITH_ADAM: FixedRate("Adam", ADAM | IMAGES, **LENGTH),
}
PAPER = ALL_NETWORKS | {
    ("SGD", "0.3"): Published("0.829 ResNet101", "+0.1 pt", "1.85x", "2.03x"),
    ("SGD", "0.5"): Published("0.846 ResNet101", "+0.1 pt", "2.33x", "1.67x"),
}


def resnet_trials(lab: Lab) -> dict[str, Trial]:
    """Every method with each optimizer; with SGD, BSP with each change and exchanges at fixed steps, too."""
    chosen = {title: setting_of(lab, title) for title in SETTINGS}
    found = {
        place(title, name): patient(lab, setting, setting.policy(name))
        for title, setting in chosen.items()
        for name in METHODS
    }
    setting = chosen[WITH_SGD]
    found |= {place(WITH_SGD, name): patient(lab, change(setting), METHODS["BSP"]) for name, change in CHANGES.items()}
    dealt = setting._replace(training=setting.training | {"partition": "seldp"})
    return found | {place(WITH_SGD, LOCAL): patient(lab, dealt, LOCAL)}


def setting_of(lab: Lab, title: str) -> FixedRate:
    """Quick: a convolutional network on the digits."""
    setting = SETTINGS[title]
    return setting._replace(training=setting.training | DIGITS) if lab.quick else setting


def resnet_section(lab: Lab) -> DocumentSection:
    own = lab.with_seeds(SEEDS)
    runs = own.run(resnet_trials(own))
    groups = {title: {name: runs[place(title, name)] for name in METHODS} for title in SETTINGS}
    tried = {name: runs[place(WITH_SGD, name)] for name in (*CHANGES, LOCAL)}
    tables = [by_method(WITH_SGD, groups[WITH_SGD] | tried), by_method(WITH_ADAM, groups[WITH_ADAM])]
    return findings(
        "Table 1 to convergence: a ResNet-20 on CIFAR-10",
        text_of(own),
        [row for title, group in groups.items() for row in rows_of(title, group, tried if title == WITH_SGD else {})],
        [settings_table(SETTINGS), *tables],
        [accuracy_plot(key_of(title), title, CAPTION, group) for title, group in groups.items()],
    )


def rows_of(title: str, group: Results, tried: Results) -> list[ClaimRow]:
    """The claims of table 1 with one optimizer; `tried` are the runs that test what SelSync gains over BSP."""
    found: list[ClaimRow] = []
    for delta in DELTAS:
        ours, said = group[f"SelSync delta = {delta}"], PAPER[SETTINGS[title].optimizer, delta]
        notes = delta_note(group), gain_note(ours, group, tried)
        found += delta_rows(f"{title}, delta {delta}", said, ours, group["BSP"], *notes)
    why = f"Not known. Its LSSR is {mean_text(lssr(group['FedAvg (1, 0.25)']))}."
    return [*found, fed_row(title, SETTINGS[title], group, why)]


def gain_note(ours: Runs, group: Results, tried: Results) -> str:
    """What is left of it beside what was tried, BSP with each change and exchanges at fixed steps, or beside FedAvg."""
    others, score = tried or {"FedAvg (1, 0.25)": group["FedAvg (1, 0.25)"]}, last_score(ours)
    left = [f"{mean_text(difference(score, last_score(runs)))} against {name}" for name, runs in others.items()]
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
        f"decays. Seeds: {len(lab.seeds)}."
    )
