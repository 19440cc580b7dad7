"""What lets a switch at 6.25 % keep BSP's accuracy: the decays of the rate, momentum, and the rate, one at a time."""

from typing import NamedTuple

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm_experiments.reproduce.figures import mean_text
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.sync_switch.accuracy import final_text, less
from polyrhythm_experiments.reproduce.sync_switch.trials import CHOSEN, MOMENTA, SETUPS, scenario_of

LOW_RATE = 0.003
LATE, EARLY = (0.5547, 0.8047), (0.0625, 0.5)
"""Where the paper's counter of updates puts the decays of a switch at 6.25 %, and a first decay at the switch."""


class Ablation(NamedTuple):
    """One thing that differs from setup 1 with a switch at 6.25 %.

    Args:
        key: of its trials.
        what: it changes, and to what.
        options: of the switch.
    """

    key: str
    what: str
    options: str = ""


ABLATIONS = (
    Ablation("lr 0.5", "rate after the switch: a half", ",lr=0.5"),
    Ablation("lr 0.25", "rate after the switch: a quarter", ",lr=0.25"),
    Ablation("lr 0.125", "rate after the switch: an eighth", ",lr=0.125"),
    Ablation("low", f"rate of the whole job: {LOW_RATE:g}"),
    Ablation("late", "decays counted in updates, as in the paper's runs: at 55.5 and 80.5 %"),
    Ablation("early", "decays: at the switch and at 50 %"),
    *(Ablation(f"momentum {name}", f"momentum after the switch: {name}", f",momentum={momentum}")
      for name, momentum in MOMENTA.items()),
    Ablation("momentum 0, lr 10", "momentum after the switch: 0, with ten times the rate", ",momentum=zero,lr=10"),
    Ablation("momentum 0, lr 5", "momentum after the switch: 0, with five times the rate", ",momentum=zero,lr=5"),
)  # fmt: skip


def knee_trials(lab: Lab) -> dict[str, Trial]:
    """Setup 1 with each change, and BSP in the jobs that differ before the switch."""
    plain = scenario_of(lab, SETUPS[1])
    others = {
        "late": scenario_of(lab, SETUPS[1], decay_at=LATE),
        "early": scenario_of(lab, SETUPS[1], decay_at=EARLY),
        "low": scenario_of(lab, SETUPS[1], learning_rate=LOW_RATE),
    }
    found = {f"knee/{each.key}": Trial(others.get(each.key, plain), CHOSEN + each.options) for each in ABLATIONS}
    return found | {f"knee/{key}/BSP": Trial(others[key], "bsp") for key in ("early", "low")}


def knee_section(runs: Results) -> DocumentSection:
    """What each change does to the accuracy of a switch at 6.25 %."""
    cells = [knee_cells(runs, "as in the paper", "1/0.0625")]
    cells += [knee_cells(runs, change.what, f"knee/{change.key}") for change in ABLATIONS]
    headings = ("setup 1, switch at 6.25 %", "accuracy", "less BSP's", "less ASP's", "less BSP's with the same change")
    rows = [
        ClaimRow(f"accuracy of a switch at 6.25 % less BSP's, {what}", "", "", less(runs[place], runs["1/BSP"]))
        for what, place in (("as in the paper", "1/0.0625"), ("half the rate after it", "knee/lr 0.5"))
    ]
    return findings("What makes 6.25 % possible", TEXT, rows, [Grid("One change at a time", headings, cells)])


TEXT = (
    "Setup 1, one thing at a time: where the rate decays, what becomes of momentum, and the rate after the switch. "
    "BSP and ASP are those of setup 1; where a change is one of BSP too, the last column has it."
)


def knee_cells(runs: Results, what: str, place: str) -> list[str]:
    mine, changed = runs[place], runs.get(f"{place}/BSP")
    same = str(less(mine, changed)) if changed is not None else ""
    return [what, final_text(mine), str(less(mine, runs["1/BSP"])), str(less(mine, runs["1/ASP"])), same]


def knee_note(runs: Results) -> str:
    """What was tried at 6.25 %, in short."""
    bsp = runs["1/BSP"]
    texts = [
        f"{mean_text(less(runs[f'knee/{key}'], bsp))} {what}"
        for key, what in (
            ("lr 0.5", "with half the rate after the switch"),
            ("lr 0.25", "with a quarter of it"),
            ("late", "with the decays of the paper's counter"),
            ("early", "with a decay at the switch"),
            ("momentum 0", "without momentum after it"),
            ("momentum 0, lr 10", "without it and with ten times the rate"),
        )
    ]
    return f"At 6.25 % in setup 1 it is {', '.join(texts)} (table of what makes 6.25 % possible)."
