"""Table 1 of the paper on SelSync at equal steps of each worker, beside the paper's figures."""

from collections.abc import Mapping

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm_experiments.reproduce.curves import accuracy_plot
from polyrhythm_experiments.reproduce.figures import Measured, difference, over_seeds, percent, ratio
from polyrhythm_experiments.reproduce.lab import Results, Runs
from polyrhythm_experiments.reproduce.page import ClaimRow, findings
from polyrhythm_experiments.reproduce.selsync.causes import (
    accuracies,
    durations,
    less_note,
    lssr,
    often_note,
    push_note,
    sooner,
    speed_note,
    tie_note,
)

VGG11 = {
    "BSP": ("0", "0 pt", "1x"),
    "FedAvg (1, 0.25)": ("0.979", "-3.3 pt", "-"),
    "FedAvg (1, 0.125)": ("0.959", "-2.7 pt", "-"),
    "FedAvg (0.5, 0.25)": ("0.979", "-6.3 pt", "-"),
    "FedAvg (0.5, 0.125)": ("0.959", "-5.7 pt", "-"),
    "SSP s = 100": ("-", "-22.2 pt", "-"),
    "SSP s = 200": ("-", "-22.1 pt", "-"),
    "SelSync delta = 0.3": ("0.912", "+0.4 pt", "6.16x"),
    "SelSync delta = 0.5": ("0.937", "+0.4 pt", "13.75x"),
}
"""LSSR, difference to BSP and speed-up in table 1, for the model whose hyper-parameters ours has."""


def table_one(runs: Results) -> DocumentSection:
    base = runs["table/BSP"]
    headings = (
        "method", "LSSR", "accuracy", "difference to BSP", "time / BSP's", "sooner at BSP - 1 pt", "paper: LSSR",
        "paper: difference", "paper: speed-up",
    )  # fmt: skip
    names = [place.removeprefix("table/") for place in runs if place.startswith("table/")]
    cells = [[name, *map(str, table_cells(runs[f"table/{name}"], base)), *VGG11.get(name, ("",) * 3)] for name in names]
    shown = ("BSP", "FedAvg (1, 0.25)", "SSP s = 100", "SelSync delta = 0.3", "SelSync delta = 0.5")
    curves = curve_plot("table", "Table 1 as curves", {name: runs[f"table/{name}"] for name in shown})
    table = Grid("Table 1, beside the paper's figures for VGG11", headings, cells)
    return findings("Table 1 at equal steps", TABLE_TEXT, table_rows(runs), [table], [curves])


TABLE_TEXT = (
    "Equal steps for all, where the paper runs each method until it no longer improves. A run is sooner by the ratio "
    "of the times at which BSP and it come within one point of BSP's final accuracy, seed by seed. The paper's own row "
    "of VGG11 at delta 0.5 has 5,100 exchanges (81,200 steps, LSSR 0.937) against BSP's 10,800, which is 2.1x fewer, "
    "and a speed-up of 13.75x."
)


def table_cells(runs: Runs, base: Runs) -> list[Measured | str]:
    if all_diverged(runs):
        return ["", "diverged", "", "", "never"]
    return [
        lssr(runs),
        over_seeds(accuracies(runs), percent),
        difference(accuracies(runs), accuracies(base)),
        ratio(durations(runs), durations(base)),
        sooner(runs, base),
    ]


def all_diverged(runs: Runs) -> bool:
    """Whether no seed has an accuracy, because each left the finite numbers or exploded."""
    return all(run.status == "diverged" for run in runs)


def table_rows(runs: Results) -> list[ClaimRow]:
    return [
        *selsync_rows(runs, "0.3", "0.73 to 0.95", "+0.1 to +1.6 pt", "2.0x to 6.2x"),
        *selsync_rows(runs, "0.5", "0.73 to 0.97", "+0.1 to +0.8 pt", "1.7x to 13.8x"),
        *other_rows(runs),
    ]


def selsync_rows(runs: Results, delta: str, shares: str, gains: str, speeds: str) -> list[ClaimRow]:
    """What the paper says of SelSync at one delta."""
    base, at = runs["table/BSP"], runs[f"table/SelSync delta = {delta}"]
    gain = difference(accuracies(at), accuracies(base))
    nearer = f"sooner at BSP's accuracy - 1 pt, delta {delta}"
    return [
        ClaimRow(f"LSSR, delta {delta}", "table 1", shares, lssr(at)),
        ClaimRow(f"accuracy less BSP's, delta {delta}", "table 1", gains, gain, less_note(runs, delta)),
        ClaimRow(nearer, "table 1", speeds, sooner(at, base), speed_note(runs, delta)),
    ]


def other_rows(runs: Results) -> list[ClaimRow]:
    """What it says of SelSync beside FedAvg, and of SSP."""
    names = {"delta 0.3": "FedAvg (1, 0.25)", "delta 0.5": "FedAvg (1, 0.125)"}
    said, why = ("+0.1 to +9.6 pt", "0 to +7.7 pt"), (often_note(runs), tie_note(runs))
    fed = [
        ClaimRow(f"accuracy less {name}'s, {delta}", "table 1", said[i], gain_over(runs, name, at(delta)), why[i])
        for i, (delta, name) in enumerate(names.items())
    ]
    full, less = (gain_over(runs, "BSP", name) for name in ("SSP s = 100", "SSP s = 100, rate / 16"))
    return [
        *fed,
        ClaimRow("accuracy of SSP s = 100 less BSP's", "table 1", "-22.2 to +1.4 pt", full, push_note(runs)),
        ClaimRow("the same, at a sixteenth of the rate", "not there", "", less),
    ]


def at(delta: str) -> str:
    return f"SelSync {delta.replace(' ', ' = ')}"


def gain_over(runs: Results, base: str, name: str) -> Measured:
    """Accuracy of a method less that of another."""
    return difference(accuracies(runs[f"table/{name}"]), accuracies(runs[f"table/{base}"]))


def curve_plot(key: str, title: str, groups: Mapping[str, Runs]) -> Chart:
    return accuracy_plot(key, title, "Test accuracy against virtual time, first seed.", groups)
