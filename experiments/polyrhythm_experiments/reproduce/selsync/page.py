"""SelSync (Tyagi and Swany): replicas that are averaged in the steps in which a gradient changes much."""

from collections.abc import Sequence

from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm_experiments.reproduce.figures import Measured, difference, over_seeds, percent, plain, seconds
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs
from polyrhythm_experiments.reproduce.page import ClaimRow, findings, reproduction
from polyrhythm_experiments.reproduce.selsync.causes import (
    ALIKE,
    MIXED,
    accuracies,
    by_drift,
    cause_trials,
    chunk_note,
    drift_note,
    durations,
    fire_note,
    lssr,
    mix_note,
    replica_accuracies,
)
from polyrhythm_experiments.reproduce.selsync.converged import converged_section
from polyrhythm_experiments.reproduce.selsync.converged_causes import converged_cause_trials
from polyrhythm_experiments.reproduce.selsync.inside import inside_section
from polyrhythm_experiments.reproduce.selsync.language import language_section, language_trials
from polyrhythm_experiments.reproduce.selsync.live import live_section, lives
from polyrhythm_experiments.reproduce.selsync.premises import premise_section, premise_trials
from polyrhythm_experiments.reproduce.selsync.resnet import resnet_section
from polyrhythm_experiments.reproduce.selsync.settings import converged_trials
from polyrhythm_experiments.reproduce.selsync.table import curve_plot, table_cells, table_one
from polyrhythm_experiments.reproduce.selsync.trials import ITERATIONS, LABELS, REGIMES, SKEWED, STRETCH, trials

SOURCE = "Tyagi, Swany: *Accelerating Distributed ML Training via Selective Synchronization*, IEEE CLUSTER 2023."


def page(lab: Lab) -> Document:
    converged = {**converged_trials(lab), **converged_cause_trials(lab), **language_trials(lab)}
    runs = lab.run({**converged, **trials(lab), **cause_trials(lab), **premise_trials(lab)})
    return reproduction(
        title="SelSync, reproduced",
        source=SOURCE,
        conditions=conditions(lab),
        parts=[
            premise_section(lab, runs),
            inside_section(lab),
            converged_section(runs),
            resnet_section(lab),
            language_section(runs),
            table_one(runs),
            data(runs),
            aggregation(runs),
            skew(runs),
            stretch(runs),
            *([] if lab.quick else [live_section(lives(lab))]),
        ],
        missing=[
            "The ResNet-20 with 16 workers; what makes SelSync better there than local:20.",
            "ResNet101, VGG11 and AlexNet themselves, on CIFAR and ImageNet.",
            "SSP and the other settings of FedAvg to convergence: equal steps alone.",
            "The Transformer at the paper's size, on WikiText-103 and with all of its words, and SGD with the paper's "
            "decay.",
        ],
    )


def conditions(lab: Lab) -> dict[str, str]:
    return {
        "cluster": "16 workers behind one server of 5 Gbit/s, 507 MB a message (the paper's): an exchange takes 26 s, "
        "a mini-batch of 32 computes for 0.04 s (ours)",
        "task": f"{lab.task()}, an MLP with 64 hidden units, SGD, momentum 0.9, weight decay 5e-4, rate 0.05, a tenth "
        f"of it from 50 % and a hundredth from 75 % of {ITERATIONS} steps of each worker; all 10,000 test images; "
        "other settings where a section says so",
        "learning rate": "the same for an update of BSP, a push of SSP and a local step, as in the paper: one push of "
        "SSP moves the model as far as an update of BSP that averages 16 gradients",
        "time": "an accuracy of averaged replicas stands at the time at which their exchange begins, up to 26 s early",
        "data": "SelDP for SelSync, DefDP for the others",
        "seeds": lab.seed_note,
    }


def data(runs: Results) -> DocumentSection:
    """Figure 9."""
    rows = [
        ClaimRow(
            f"accuracy on SelDP less DefDP, {title}",
            "section IV-C, fig. 9",
            "+0.8 pt ResNet101, +26.8 pt VGG11",
            difference(accuracies(runs[f"chunks/{title}/seldp"]), accuracies(runs[f"chunks/{title}/defdp"])),
            chunk_note(runs),
        )
        for title in REGIMES
    ]
    text = "Gradients are aggregated at delta 0.25, as in the paper; all workers go through the chunks in one circle."
    return findings("SelDP against DefDP", text, rows)


def aggregation(runs: Results) -> DocumentSection:
    """Figure 10."""
    rows = [row for title in REGIMES for row in drift_rows(runs, title)]
    first = next(iter(REGIMES))
    groups = {kind: runs[f"aggregate/{first}/{kind}"] for kind in ("PA", "GA")}
    plots = [curve_plot("aggregation", f"PA and GA, {first}", groups)]
    return findings("Parameters against gradients", "Delta 0.3 on SelDP.", rows, [by_drift(runs)], plots)


def drift_rows(runs: Results, title: str) -> list[ClaimRow]:
    averaged, drifting = runs[f"aggregate/{title}/PA"], runs[f"aggregate/{title}/GA"]
    mean = difference(accuracies(averaged), accuracies(drifting))
    one = difference(accuracies(averaged), replica_accuracies(drifting))
    said = "+1.7 pt ResNet101, +0.6 pt VGG11, 0 AlexNet"
    what = f"accuracy, PA less GA (mean of replicas), {title}"
    return [
        ClaimRow(what, "section IV-D, fig. 10", said, mean, drift_note(runs)),
        ClaimRow(f"accuracy, PA less GA (one replica), {title}", "", "", one),
    ]


def skew(runs: Results) -> DocumentSection:
    """Figure 12."""
    base = accuracies(runs["skew/FedAvg (1, 0.1)"])
    cells = [[name, *map(str, skew_cells(runs[f"skew/{name}"], base))] for name in (*SKEWED, *MIXED, ALIKE)]
    headings = ("method", "LSSR", "accuracy", "difference to FedAvg", "time (s)", "injected samples a worker's step")
    rows = [
        ClaimRow(
            f"accuracy, {name} less FedAvg (1, 0.1)",
            "section IV-E, fig. 12",
            "more, the most for (0.75, 0.75, 0.3)",
            difference(accuracies(runs[f"skew/{name}"]), base),
            mix_note(runs, shares),
        )
        for name, (_, shares) in SKEWED.items()
        if shares is not None
    ]
    text = (
        f"{LABELS} workers with one label each, rate 0.01, equal steps. With injection workers draw b' = 9 and 5 "
        "samples themselves; the paper's 11 and 6 follow from its equation 3 for 8 workers, not 10. "
        f"{fire_note(runs)}"
    )
    return findings("One label a worker: data injection against FedAvg", text, rows, [Grid("", headings, cells)])


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
    "Ours. The momentum of SelSync stays with each worker; averaged along with the parameters it costs as many bytes "
    "again, which are counted here. fp16 halves all that is sent. DiLoCo stands beside it, with a momentum of its own "
    "and without, in 100 rounds. The table says what each brings."
)
