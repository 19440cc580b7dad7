"""Figures 10 to 14: each setup's end-to-end figures and curves, and each setup's switch point in the others."""

from collections.abc import Mapping

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm_experiments.reproduce.figures import mean_text, over_seeds, seconds
from polyrhythm_experiments.reproduce.lab import Results, Runs
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings
from polyrhythm_experiments.reproduce.sync_switch.accuracy import converged_text, final_text, less
from polyrhythm_experiments.reproduce.sync_switch.knee import knee_note
from polyrhythm_experiments.reproduce.sync_switch.times import durations, faster
from polyrhythm_experiments.reproduce.sync_switch.trials import GENTLE, POLICIES, SETUPS

HEADINGS = ("accuracy", "converged", "less BSP's", "time", "speed vs. BSP", "diverged")
GENTLE_NAMES = {"half": "6.25 %, half the rate", "quarter": "6.25 %, a quarter of the rate"}


def at(number: int, share: float) -> str:
    return f"{number}/{share:g}"


def one_setup(runs: Results, number: int) -> DocumentSection:
    setup = SETUPS[number]
    names = ["BSP", "ASP", *(f"{each:g}" for each in setup.shares), *GENTLE]
    cells = [[label(name), *setup_cells(runs[f"{number}/{name}"], runs[f"{number}/BSP"])] for name in names]
    drawn = dict.fromkeys(("BSP", "ASP", f"{setup.chosen:g}", "0.5", *GENTLE))
    shown = {label(name): runs[f"{number}/{name}"] for name in drawn}
    return findings(
        f"Setup {number}: figures 10 and {10 + number}",
        f"The paper: {setup.paper}, switch at {100 * setup.chosen:g} %. Here: {setup.workers} workers, rate "
        f"{setup.rate:g}, {setup.compute_s:g} s a mini-batch.",
        setup_rows(runs, number),
        [Grid("", ("policy", *HEADINGS), cells)],
        [
            curves(f"accuracy-{number}", "Test accuracy", shown, loss=False),
            curves(f"loss-{number}", "Loss", shown, loss=True),
        ],
    )


def label(name: str) -> str:
    """A policy as tables name it.

    >>> label("0.25"), label("ASP"), label("half")
    ('25 %', 'ASP', '6.25 %, half the rate')
    """
    return f"{100 * float(name):g} %" if name[0].isdigit() else GENTLE_NAMES.get(name, name)


PAPER_GAIN = {1: "+2.5 pt", 2: "up to +3.8 pt", 3: "ASP diverged"}


def setup_rows(runs: Results, number: int) -> list[ClaimRow]:
    """The claims of figure 10, and the same at the first decay."""
    chosen = SETUPS[number].chosen
    bsp, asp = runs[f"{number}/BSP"], runs[f"{number}/ASP"]
    rows = []
    for share in dict.fromkeys((chosen, 0.5)):
        mine, own = runs[at(number, share)], share == chosen
        what, place = f"accuracy of a switch at {100 * share:g} % less", "figure 10" if own else ""
        why = reason(runs, number) if share < 0.5 else ""
        rows += [
            ClaimRow(f"{what} BSP's", place, "about 0" if own else "", less(mine, bsp), why),
            ClaimRow(f"{what} ASP's", place, PAPER_GAIN[number] if own else "", less(mine, asp), why),
        ]
    rows += [
        ClaimRow(f"accuracy of a switch at {said} after it, less BSP's", "", "", less(runs[f"{number}/{name}"], bsp))
        for name, said in GENTLE_NAMES.items()
    ]
    return rows


def reason(runs: Results, number: int) -> str:
    """What was tried in this setup."""
    if number == 1:
        return knee_note(runs)
    bsp = runs[f"{number}/BSP"]
    tried = {"at the paper's rate": "0.0625", "with half of it after the switch": "half", "with a quarter": "quarter"}
    texts = [f"{mean_text(less(runs[f'{number}/{name}'], bsp))} {how}" for how, name in tried.items()]
    return (
        f"Not known. A switch at 6.25 % is {', '.join(texts)}; ASP alone {mean_text(less(runs[f'{number}/ASP'], bsp))}."
    )


def setup_cells(runs: Runs, base: Runs) -> list[str]:
    return [
        final_text(runs),
        converged_text(runs),
        str(less(runs, base)),
        str(over_seeds(durations(runs), seconds)),
        str(faster(runs, base)),
        f"{sum(run.status == 'diverged' for run in runs)} of {len(runs)}",
    ]


def curves(key: str, title: str, groups: Mapping[str, Runs], *, loss: bool) -> Chart:
    """The best run of each policy against time, as the paper draws it."""
    series = []
    for name, runs in groups.items():
        best = max(runs, key=lambda run: run.best_accuracy or 0.0)
        ys = [point.loss if loss else point.accuracy for point in best.curve]
        series.append(Series(name, [point.time_s for point in best.curve], ys))
    caption = "Best run of each, against virtual time." + (
        " Loss on the test set; the paper has the training loss." if loss else ""
    )
    return drawing(key, title, caption, ("time (s)", "loss" if loss else "test accuracy"), series, percent_y=not loss)


def crossed(runs: Results) -> DocumentSection:
    """Figure 14."""
    cells = [
        [str(number), label(f"{share:g}"), *setup_cells(runs[at(number, share)], runs[f"{number}/BSP"])]
        for number in SETUPS
        for share in POLICIES
    ]
    times = [ClaimRow(f"time at {label(f'{share:g}')} over that at 6.25 %, setup 1", "figure 14", paper,
                      faster(runs[at(1, POLICIES[0])], runs[at(1, share)]))
             for share, paper in ((POLICIES[1], "1.33x"), (POLICIES[2], "3x"))]  # fmt: skip
    return findings("Switch points in other setups: figure 14", CROSSED, times, [
        Grid("Policies 1 to 3 in every setup", ("setup", "policy", *HEADINGS), cells)
    ])  # fmt: skip


CROSSED = "The paper: in setup 3 only its own point trains at all."
