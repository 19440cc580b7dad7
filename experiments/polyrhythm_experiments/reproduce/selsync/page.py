"""SelSync (Tyagi and Swany): replicas that are averaged in the steps in which a gradient changes much."""

from collections.abc import Mapping, Sequence

from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm_experiments.reproduce.curves import accuracy_plot, reached_s
from polyrhythm_experiments.reproduce.figures import (
    Measured,
    difference,
    over_seeds,
    percent,
    plain,
    ratio,
    seconds,
    times,
)
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs
from polyrhythm_experiments.reproduce.page import ClaimRow, findings, reproduction
from polyrhythm_experiments.reproduce.selsync.live import live_section, lives
from polyrhythm_experiments.reproduce.selsync.trials import ITERATIONS, LABELS, REGIMES, SKEWED, STRETCH, trials

SOURCE = "Tyagi, Swany: *Accelerating Distributed ML Training via Selective Synchronization*, IEEE CLUSTER 2023."
NEAR = 0.01
"""How far below BSP's final accuracy a run must come for its time to count."""

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


def page(lab: Lab) -> Document:
    runs = lab.run(trials(lab))
    return reproduction(
        title="SelSync, reproduced",
        source=SOURCE,
        conditions=conditions(lab),
        parts=[
            table_one(runs),
            data(runs),
            aggregation(runs),
            skew(runs),
            stretch(runs),
            *([] if lab.quick else [live_section(lives(lab))]),
        ],
        missing=[
            "ResNet101, VGG11, AlexNet and the Transformer: one run of table 1 takes days on two cores.",
            "Figures 3 to 5 and 11: polyrhythm diagnose draws them for any scenario.",
        ],
    )


def conditions(lab: Lab) -> dict[str, str]:
    return {
        "cluster": "16 workers behind one server of 5 Gbit/s, 507 MB a message (the paper's): an exchange takes 26 s, "
        "a mini-batch of 32 computes for 0.04 s (ours)",
        "task": f"{lab.task()}, an MLP with 64 hidden units, SGD, momentum 0.9, weight decay 5e-4, rate 0.05, a tenth "
        f"of it from 50 % and a hundredth from 75 % of {ITERATIONS} steps of each worker; all 10,000 test images",
        "learning rate": "the same for an update of BSP, a push of SSP and a local step, as in the paper: one push of "
        "SSP moves the model as far as an update of BSP that averages 16 gradients",
        "time": "an accuracy of averaged replicas stands at the time at which their exchange begins, up to 26 s early",
        "data": "SelDP for SelSync, DefDP for the others",
        "seeds": lab.seed_note,
    }


def accuracies(runs: Runs) -> list[float | None]:
    return [run.final_accuracy for run in runs]


def durations(runs: Runs) -> list[float | None]:
    return [run.duration_s for run in runs]


def lssr(runs: Runs) -> Measured:
    return over_seeds([run.lssr for run in runs], plain)


def near_s(runs: Runs, base: Runs, below: float = NEAR) -> list[float | None]:
    """Time at which each seed comes so near to the final accuracy that BSP has with the same seed."""
    return [reached_s(run, (bsp.final_accuracy or 0.0) - below) for run, bsp in zip(runs, base, strict=True)]


def sooner(runs: Runs, base: Runs, below: float = NEAR) -> Measured:
    """How many times sooner than BSP a run comes near to BSP's final accuracy."""
    return ratio(near_s(base, base, below), near_s(runs, base, below), times)


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
    return findings("Table 1", TABLE_TEXT, table_rows(runs), [table], [curves])


TABLE_TEXT = (
    "Equal steps for all, where the paper runs each method until it no longer improves. A run is sooner by the ratio "
    "of the times at which BSP and it come within one point of BSP's final accuracy, seed by seed."
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
    base = runs["table/BSP"]
    rows: list[ClaimRow] = []
    for delta, shares, gains, speeds in (
        ("0.3", "0.73 to 0.95", "+0.1 to +1.6 pt", "2.0x to 6.2x"),
        ("0.5", "0.73 to 0.97", "+0.1 to +0.8 pt", "1.7x to 13.8x"),
    ):
        at = runs[f"table/SelSync delta = {delta}"]
        gain = difference(accuracies(at), accuracies(base))
        rows += [
            ClaimRow(f"LSSR, delta {delta}", "table 1", shares, lssr(at)),
            ClaimRow(f"accuracy less BSP's, delta {delta}", "table 1", gains, gain, WHY_LESS),
            ClaimRow(f"sooner at BSP's accuracy - 1 pt, delta {delta}", "table 1", speeds, sooner(at, base), WHY_SPEED),
        ]
    fed = runs["table/FedAvg (1, 0.25)"]
    gap = difference(accuracies(runs["table/SelSync delta = 0.3"]), accuracies(fed))
    often = runs["table/FedAvg (1, 0.125)"]
    tie = difference(accuracies(runs["table/SelSync delta = 0.5"]), accuracies(often))
    slow = difference(accuracies(runs["table/SSP s = 100"]), accuracies(base))
    scaled = difference(accuracies(runs["table/SSP s = 100, rate / 16"]), accuracies(base))
    return [
        *rows,
        ClaimRow("accuracy less FedAvg (1, 0.25)'s, delta 0.3", "table 1", "+0.1 to +9.6 pt", gap, WHY_FED),
        ClaimRow("accuracy less FedAvg (1, 0.125)'s, delta 0.5", "table 1", "0 to +7.7 pt", tie, WHY_TIE),
        ClaimRow("accuracy of SSP s = 100 less BSP's", "table 1", "-22.2 to +1.4 pt", slow, WHY_SSP),
        ClaimRow("the same, at a sixteenth of the rate", "not there", "", scaled, WHY_SSP),
    ]


WHY_LESS = (
    "At equal steps local steps are noisier than averaged ones, and nothing makes up for it. The paper runs SelSync on "
    "until it no longer improves, for up to 7 times BSP's steps; of its four models only AlexNet gains with fewer."
)
WHY_SPEED = (
    "By communication alone the most is 1 / (1 - LSSR). For VGG11 the paper has 5,100 exchanges (81,200 steps, LSSR "
    "0.937) against BSP's 10,800, hence 2.1x at most; its 13.75x is neither that nor the 15.9x of equal steps."
)
WHY_FED = "At equal steps; SelSync 0.3 exchanges five times as often."
WHY_TIE = "At equal bytes and time it does not matter who says when."
WHY_SSP = "The rate of a push decides: full, 16 pushes move 16 times as far as BSP's update; a sixteenth, as far."


def curve_plot(key: str, title: str, groups: Mapping[str, Runs]) -> Chart:
    return accuracy_plot(key, title, "Test accuracy against virtual time, first seed.", groups)


def data(runs: Results) -> DocumentSection:
    """Figure 9."""
    rows = [
        ClaimRow(
            f"accuracy on SelDP less DefDP, delta {delta}",
            "section IV-C, fig. 9",
            "+0.8 pt ResNet101, +26.8 pt VGG11",
            difference(accuracies(runs[f"data/{delta}/seldp"]), accuracies(runs[f"data/{delta}/defdp"])),
            WHY_DATA,
        )
        for delta in (0.3, 0.5)
    ]
    return findings("SelDP against DefDP", "The paper aggregates gradients here; we, parameters.", rows)


WHY_DATA = (
    "A chunk of 3,750 random images is like any other. The paper's loss on VGG11 looks like chunks that were not "
    "random, or replicas that drifted apart under gradient aggregation."
)


def aggregation(runs: Results) -> DocumentSection:
    """Figure 10."""
    rows: list[ClaimRow] = []
    for title in REGIMES:
        averaged, drifting = runs[f"aggregate/{title}/PA"], runs[f"aggregate/{title}/GA"]
        one = [run.replica_accuracy for run in drifting]
        rows += [
            ClaimRow(
                f"accuracy, PA less GA (mean of replicas), {title}",
                "section IV-D, fig. 10",
                "+1.7 pt ResNet101, +0.6 pt VGG11, 0 AlexNet",
                difference(accuracies(averaged), accuracies(drifting)),
                WHY_GA,
            ),
            ClaimRow(
                f"accuracy, PA less GA (one replica), {title}", "", "", difference(accuracies(averaged), one), WHY_GA
            ),
        ]
    first = next(iter(REGIMES))
    groups = {kind: runs[f"aggregate/{first}/{kind}"] for kind in ("PA", "GA")}
    plots = [curve_plot("aggregation", f"PA and GA, {first}", groups)]
    return findings("Parameters against gradients", "Delta 0.3 on SelDP.", rows, charts=plots)


WHY_GA = (
    "Under GA replicas never meet again. How far they drift depends on the rate and the momentum, and the mean of "
    "replicas that are far apart is no model at all."
)


def skew(runs: Results) -> DocumentSection:
    """Figure 12."""
    base = accuracies(runs["skew/FedAvg (1, 0.1)"])
    cells = [[name, *map(str, skew_cells(runs[f"skew/{name}"], base))] for name in SKEWED]
    headings = ("method", "LSSR", "accuracy", "difference to FedAvg", "time (s)", "injected samples a worker's step")
    rows = [
        ClaimRow(
            f"accuracy, {name} less FedAvg (1, 0.1)",
            "section IV-E, fig. 12",
            "more, the most for (0.75, 0.75, 0.3)",
            difference(accuracies(runs[f"skew/{name}"]), base),
            WHY_MIX,
        )
        for name in SKEWED
        if name.startswith("SelSync (")
    ]
    text = (
        f"{LABELS} workers with one label each, rate 0.01, equal steps. With injection workers draw b' = 9 and 5 "
        "samples themselves; the paper's 11 and 6 follow from its equation 3 for 8 workers, not 10."
    )
    return findings("One label a worker: data injection against FedAvg", text, rows, [Grid("", headings, cells)])


WHY_MIX = "Of the gain, the data make most: mixed mini-batches are so alike that Delta hardly fires."


def skew_cells(runs: Runs, base: Sequence[float | None]) -> list[Measured]:
    injected = [run.injected_samples / run.steps for run in runs]
    return [
        lssr(runs),
        over_seeds(accuracies(runs), percent),
        difference(accuracies(runs), base),
        over_seeds(durations(runs), seconds),
        over_seeds(injected, plain),
    ]


def stretch(runs: Results) -> DocumentSection:
    """Ours: BSP's accuracy at equal samples in less than half of its time."""
    base = runs["table/BSP"]
    cells = [[name, *map(str, table_cells(runs[f"stretch/{name}"], base))] for name in STRETCH]
    headings = ("setting", "LSSR", "accuracy", "difference to BSP", "time / BSP's", "sooner at BSP - 1 pt")
    return findings("BSP's accuracy at equal samples, sooner", STRETCH_TEXT, grids=[Grid("", headings, cells)])


STRETCH_TEXT = (
    "Ours. Some of what SelSync loses against BSP at equal samples is momentum, which on each worker goes on from "
    "where its own replica was. Averaging it along with the parameters regains that and costs as many bytes again, "
    "which are counted here; fp16 halves all that is sent. Once the rate has decayed, replicas hardly drift apart, and "
    "an exchange every 8 steps will do. DiLoCo stands beside it, with and without a momentum of its own, which does "
    "not pay in the 100 rounds that it makes here."
)
