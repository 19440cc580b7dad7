"""Sync-Switch (Li, Mangoubi, Xu, Guo): BSP for the first part of the workload, ASP for the rest."""

import os
from collections.abc import Sequence

from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm_experiments.reproduce.figures import mean_text, over_seeds, ratio, seconds, times
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings, reproduction
from polyrhythm_experiments.reproduce.sync_switch.accuracy import CHANGE, PATIENCE, final, less
from polyrhythm_experiments.reproduce.sync_switch.calibration import batch_note, calibrated, calibration_trials
from polyrhythm_experiments.reproduce.sync_switch.knee import knee_note, knee_section, knee_trials
from polyrhythm_experiments.reproduce.sync_switch.live import LiveSwitch, measure
from polyrhythm_experiments.reproduce.sync_switch.resnet import resnet_section
from polyrhythm_experiments.reproduce.sync_switch.setups import at, crossed, label, one_setup
from polyrhythm_experiments.reproduce.sync_switch.stragglers import straggler_trials, stragglers
from polyrhythm_experiments.reproduce.sync_switch.times import NOISE, durations, faster, saved, sooner
from polyrhythm_experiments.reproduce.sync_switch.trials import (
    BATCHES,
    EVALUATIONS,
    GENTLE,
    MOMENTA,
    PAPER_BATCHES,
    SAMPLES,
    SETUPS,
    trials,
)

SOURCE = (
    "Li, Mangoubi, Xu, Guo: *Sync-Switch: Hybrid Parameter Synchronization for Distributed Deep Learning*, ICDCS 2021. "
    '"Logs" are the authors\' training logs, published with their code (github.com/cake-lab/Sync-Switch).'
)
LIVE_WORKERS = (2, 8, 16)


def page(lab: Lab) -> Document:
    runs = lab.run(all_trials(lab))
    live = live_switches(lab)
    return reproduction(
        title="Sync-Switch, reproduced",
        source=SOURCE,
        conditions=conditions(lab),
        parts=[
            overview(runs),
            calibrated(runs),
            order(runs),
            knee_section(runs),
            *(one_setup(runs, number) for number in SETUPS),
            resnet_section(lab),
            crossed(runs),
            configuration(runs),
            stragglers(runs),
            overhead(live),
        ],
        missing=[
            "ResNet32 and ResNet50, images of 32x32 pixels and CIFAR-100: a run of the paper takes hours on 8 GPUs. An "
            "MLP on Fashion-MNIST stands for them, and a ResNet-20 on CIFAR-10 at 16x16 pixels in setup 1.",
            "The ResNet-20 in setups 2 and 3, and with more than one other rate after the switch.",
            "Tables II and IV to VI and figure 16 are an analysis of logs: polyrhythm search-cost.",
            "The other shares of figures 5(b) and 11 to 13: left out for the time that they take.",
        ],
    )


def all_trials(lab: Lab) -> dict[str, Trial]:
    return {**trials(lab), **knee_trials(lab), **calibration_trials(lab), **straggler_trials(lab)}


def conditions(lab: Lab) -> dict[str, str]:
    task = lab.task("Fashion-MNIST, 20,000 images")
    rates = ", ".join(f"{setup.rate:g} in setup {number}" for number, setup in SETUPS.items())
    steps = ", ".join(f"{setup.compute_s:g} s in setup {number}" for number, setup in SETUPS.items())
    return {
        "cluster": f"8, 8 and 16 equal workers, as many servers of 10 Gbit/s, 2 MB a message; a mini-batch of 32 "
        f"computes for {steps}, 5 % jitter; calibrated from the authors' logs, see below; virtual time",
        "task": f"{task}; an MLP, SGD, momentum 0.9, a tenth of the rate from 50 % and a hundredth from 75 % of "
        f"{SAMPLES:,} samples, as in the paper, which has {PAPER_BATCHES:,} mini-batches (here {SAMPLES // 32:,})",
        "accuracy": f'on all 10,000 test images, at the end of the workload, as in the authors\' logs. "Converged" is '
        f"the paper's criterion: {PATIENCE} evaluations within {100 * CHANGE:g} pt, one every "
        f"{SAMPLES // EVALUATIONS:,} samples; in brackets, for how many seeds it holds",
        "learning rate": f"n times the rate of one mini-batch for an update of BSP, that rate for one of ASP: {rates}",
        "schedule": "counted in samples. The paper's runs count updates, so hybrid ones decay later than those of BSP",
        "seeds": lab.seed_note,
    }


def overview(runs: Results) -> DocumentSection:
    """Figure 2 and Table I."""
    bsp = runs["1/BSP"]
    rows = [
        ClaimRow(
            f"time saved by a switch at {share:.0%}, setup 1", "figure 2(b)", paper, saved(runs[at(1, share)], bsp)
        )
        for share, paper in ((0.5, "43.2 % (from the logs)"), (0.25, "63.5 %"))
    ]
    rows += [
        ClaimRow(f"accuracy of a switch at {share:.0%} less BSP's, setup 1", "figure 2(a)", "almost the same",
                 less(runs[at(1, share)], bsp), "" if share == 0.5 else knee_note(runs))
        for share in (0.5, 0.25)
    ]  # fmt: skip
    rows.append(
        ClaimRow(
            "speed of a switch at 5 % vs. BSP, setup 1, times alone", "Table I; the logs' runs are of 5 %", "5.13x",
            faster(runs["times/0.05"], bsp),
        )
    )  # fmt: skip
    headings = (
        "setup",
        "switch",
        "speed vs. ASP",
        "speed vs. BSP",
        "time to accuracy vs. BSP",
        "paper: the same three",
    )
    names = [(number, name) for number in SETUPS for name in table_names(number)]
    table = Grid("Table I", headings, [table_one(runs, *each) for each in names])
    return findings("Overview: figure 2 and Table I", OVERVIEW, rows, [table])


OVERVIEW = (
    f"Time to accuracy is that to the mean accuracy of BSP, less {100 * NOISE:g} points for the noise of the test set. "
    "ASP's speed is from times alone. "
    "Table I has the paper's switch points, the first decay of the rate at 50 %, and switches at 6.25 % after "
    "which ASP has half the paper's rate, or a quarter."
)

TABLE_ONE = {1: "0.78x, 5.13x, 3.99x", 2: "0.89x, 1.66x, 1.60x", 3: "failed, 1.87x, 1.08x"}


def table_names(number: int) -> list[str]:
    return list(dict.fromkeys((f"{SETUPS[number].chosen:g}", "0.5", *GENTLE)))


def table_one(runs: Results, number: int, name: str) -> list[str]:
    mine, bsp, asp = runs[f"{number}/{name}"], runs[f"{number}/BSP"], runs[f"times/{number}/ASP"]
    paper = TABLE_ONE[number] if name == f"{SETUPS[number].chosen:g}" else ""
    figures = (faster(mine, asp), faster(mine, bsp), sooner(mine, bsp))
    return [str(number), label(name), *map(str, figures), paper]


def order(runs: Results) -> DocumentSection:
    """Figure 5."""
    bsp = runs["1/BSP"]
    rows = [
        ClaimRow("accuracy of BSP to ASP less ASP to BSP, each half", "figure 5(a)", "above 0",
                 less(runs["1/0.5"], runs["1/ASP to BSP"])),
        ClaimRow("accuracy of ASP less BSP's", "figure 5(b)", "-2.7 pt", less(runs["1/ASP"], bsp)),
        *(
            ClaimRow(f"accuracy of a switch at {100 * share:g} % less BSP's", "figure 5(b)", "about 0",
                     less(runs[at(1, share)], bsp), knee_note(runs) if share < 0.5 else "")
            for share in SETUPS[1].shares
        ),
    ]  # fmt: skip
    return findings("Order and share: figure 5", "", rows, charts=[by_share(runs)])


def by_share(runs: Results) -> Chart:
    names = ["ASP", *(f"{share:g}" for share in SETUPS[1].shares), "BSP"]
    shares = [0.0, *SETUPS[1].shares, 1.0]
    means = [over_seeds(final(runs[f"1/{name}"])).value or 0.0 for name in names]
    return drawing(
        "synchronicity", "Accuracy by the share under BSP", "Setup 1, mean over seeds; figure 5(b) of the paper.",
        ("share under BSP", "test accuracy"), [Series("8 workers", [100 * share for share in shares], means)],
        percent_y=True,
    )  # fmt: skip


def configuration(runs: Results) -> DocumentSection:
    """Figure 8."""
    same = runs["1/0.0625"]
    rows = [
        ClaimRow(
            f"accuracy with momentum {name} less the same momentum", "figure 8(b)", "down to -5 pt",
            less(runs[f"knee/momentum {name}"], same), momentum_note(runs),
        )
        for name in MOMENTA
    ]  # fmt: skip
    base = durations(runs["batch/32"])
    rows += [
        ClaimRow(
            f"throughput with mini-batches of {size} after the switch, over 32", "figure 8(a)", "up to 2x apart",
            ratio(base, durations(runs[f"batch/{size}"]), times), batch_note(runs, size),
        )
        for size in BATCHES if size != 32
    ]  # fmt: skip
    return findings("Settings after the switch: figure 8", "Setup 1, switch at 6.25 %; batches in times alone.", rows)


def momentum_note(runs: Results) -> str:
    """The rate instead of momentum, and both."""
    same = runs["1/0.0625"]
    half, ten = (mean_text(less(runs[f"knee/{key}"], same)) for key in ("lr 0.5", "momentum 0, lr 10"))
    return f"The rate after the switch: {half} with half of it, {ten} with momentum 0 and ten times it."


def live_switches(lab: Lab) -> list[LiveSwitch]:
    return [
        lab.store.remember("live-switch", [workers], lambda workers=workers: measure(workers), LiveSwitch)  # type: ignore[misc]
        for workers in (LIVE_WORKERS[:1] if lab.quick else LIVE_WORKERS)
    ]


def overhead(live: Sequence[LiveSwitch]) -> DocumentSection:
    """Table III."""
    cells = [
        [str(one.workers), seconds(one.start_s), seconds(one.switch_s), f"{100 * one.switch_s / one.duration_s:.1f} %",
         f"{one.load:.1f}"]
        for one in live
    ]  # fmt: skip
    headings = ("workers", "start and end", "switch", "of the training", "load before")
    rows = [row for one in live for row in overhead_rows(one)]
    return findings("What a switch costs: Table III", LIVE_TEXT, rows, [Grid("Measured live", headings, cells)])


PAPER_OVERHEAD = {
    8: ("36 s (in parallel), 90 s (one by one)", "90 s"),
    16: ("53 s (in parallel), 165 s (one by one)", "128 s"),
}


def overhead_rows(one: LiveSwitch) -> list[ClaimRow]:
    if one.workers not in PAPER_OVERHEAD:
        return []
    switch_s, start_s = PAPER_OVERHEAD[one.workers]
    restart = f"The paper starts every process again; here none is, and a start takes {seconds(one.start_s)}."
    host = f"Not known. Ours are {one.workers} processes of one host, the paper's machines of a cloud."
    return [
        ClaimRow(f"switch, {one.workers} workers", "Table III", switch_s, over_seeds([one.switch_s], seconds), restart),
        ClaimRow(f"start, {one.workers} workers", "Table III", start_s, over_seeds([one.start_s], seconds), host),
    ]


LIVE_TEXT = (
    f"Real processes on {os.cpu_count()} cores, the digits under BSP and then ASP, each step held up by 50 ms. "
    "A switch lasts from the last report under BSP to the moment at which ASP starts everyone. Load is the mean number "
    "of processes of the host that ran or waited for a core in the minute before: above 1 it was not idle."
)
