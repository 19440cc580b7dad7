"""Accuracies of the paper's table 1: ESync and one device alone, each trained until its accuracy stands still."""

from collections.abc import Sequence

import msgspec

from polyrhythm.report.document import DocumentSection
from polyrhythm.report.figures import Chart
from polyrhythm.sim import Device, Scenario
from polyrhythm.sim.cluster.links import Network
from polyrhythm_experiments.reproduce.convergence import GAIN, PATIENCE, converged_s, last_score, mean_score
from polyrhythm_experiments.reproduce.curves import accuracy_plot
from polyrhythm_experiments.reproduce.esync.table import rounds_note, sooner
from polyrhythm_experiments.reproduce.esync.trials import ESYNC_MODES, MODES, RATE, to_target, trained
from polyrhythm_experiments.reproduce.figures import difference, mean_text, over_seeds, percent, seconds
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings

LAST_RATE = 0.2
LAST_S = 1_000.0
"""Virtual time that each is given."""
NEAR = 0.87
"""A target close to where they converge."""
ALONE = {"standalone": (LAST_RATE, LAST_S), f"standalone, rate {RATE:g}": (RATE, 2 * LAST_S)}
"""Rate and time of one device alone; the second shows what the rate does."""
DEEPER = ("ESync, blocking", "standalone")
"""What a CNN is trained with, too."""


def converged_trials(lab: Lab) -> dict[str, Trial]:
    """Evaluations are some 15 s apart for both, so that patience is of the same virtual time."""
    cluster = trained(lab, seconds=LAST_S, every=120_000, rate=LAST_RATE, samples=500_000_000)
    near = to_target(lab, LAST_RATE, 3_840)
    return {
        **{f"converged/{name}": Trial(alone(lab, rate, length_s), "bsp") for name, (rate, length_s) in ALONE.items()},
        **{f"converged/{name}": Trial(cluster, MODES[name]) for name in ESYNC_MODES},
        **{f"near/{name}": Trial(near, policy, NEAR) for name, policy in MODES.items()},
    }


def alone(lab: Lab, rate: float, length_s: float, model: str = "mlp") -> Scenario:
    """One fast device that talks to nobody."""
    cluster = trained(lab, seconds=length_s, every=30_000, rate=rate, model=model, samples=500_000_000)
    return msgspec.structs.replace(cluster, name="standalone", devices=[Device(compute_s=0.03)], network=Network())


def converged_section(runs: Results, charts: Sequence[Chart] = ()) -> DocumentSection:
    groups = {name: runs[f"converged/{name}"] for name in (*ESYNC_MODES, *ALONE)}
    rows = [
        *(less_row(groups, name) for name in ESYNC_MODES),
        *(reached_row(runs, name) for name in groups),
        *(
            ClaimRow(f"time to convergence, {name}", "", "", over_seeds([converged_s(run) for run in group], seconds))
            for name, group in groups.items()
        ),
        *(near_row(runs, name) for name in ESYNC_MODES),
    ]
    figure = accuracy_plot("converged", "Accuracy to convergence, i.i.d.", CAPTION, groups)
    return findings("Accuracy at convergence, i.i.d.", CONVERGED_TEXT, rows, charts=[figure, *charts])


def less_row(groups: Results, name: str) -> ClaimRow:
    """ESync less one device alone, and what is left of it in other ways of comparing them."""
    esync, (high, low) = groups[name], (groups[one] for one in ALONE)
    others = {
        f"At rate {RATE:g} for the one alone": difference(last_score(esync), last_score(low)),
        "at the end of their time": difference(end_accuracy(esync), end_accuracy(high)),
        "between the best evaluations": difference(best_accuracy(esync), best_accuracy(high)),
    }
    texts = ", ".join(f"{how} {mean_text(measured)}" for how, measured in others.items())
    what = f"accuracy, {name}, less standalone, each at its convergence"
    ours = difference(last_score(esync), last_score(high))
    return ClaimRow(what, "table 1", "-0.2 to +0.5 pt", ours, f"{texts}; the rest is not known.")


def end_accuracy(runs: Runs) -> list[float | None]:
    return [mean_score(run.curve[-PATIENCE:]) for run in runs]


def best_accuracy(runs: Runs) -> list[float | None]:
    return [run.best_accuracy for run in runs]


CAPTION = f"Test accuracy against virtual time at rate {LAST_RATE:g} unless it says otherwise, first seed."
CONVERGED_TEXT = (
    f"Rate {LAST_RATE:g} unless a line says otherwise, all 10,000 test images. A run has converged when the mean of "
    f"{PATIENCE} evaluations, one in some 15 s, is less than {100 * GAIN:g} pt above that of the {PATIENCE} before; "
    f"its accuracy is the mean of the last {PATIENCE}. Each is given {LAST_S:,.0f} s, the lower rate twice that. The "
    f"target of {percent(NEAR)} is on 2,000 test images."
)


def reached_row(runs: Results, name: str) -> ClaimRow:
    ours = over_seeds(last_score(runs[f"converged/{name}"]), percent)
    return ClaimRow(f"accuracy, {name}", "table 1", said_of(name), ours, deeper_note(runs, DEEPER[name in ALONE]))


def said_of(name: str) -> str:
    """The accuracies of table 1, from the lowest to the highest."""
    return "90.3 to 93.7 %" if name in ESYNC_MODES else "90.2 to 93.2 %"


def deeper_note(runs: Results, name: str) -> str:
    """What a model with more layers comes to."""
    group = runs.get(f"deeper/{name}")
    if not group:
        return ""
    ours = mean_text(over_seeds(last_score(group), percent))
    return f"A CNN at rate {RATE:g}, {name.removeprefix('ESync, ')}, comes to {ours} (next section)."


def near_row(runs: Results, name: str) -> ClaimRow:
    groups = [runs[f"near/{each}"] for each in ("SSGD", name)]
    what = f"time to {percent(NEAR)}, SSGD over {name}"
    said = "7x (2x to 27x by model)"
    return ClaimRow(what, "section 5, table 1", said, sooner(*groups), rounds_note(*groups))
