"""Runs that test the reasons on the page on SelSync: each takes away, or changes, one thing that a reason names."""

from typing import Any

from polyrhythm.report.document import Grid
from polyrhythm_experiments.reproduce.curves import reached_s, reached_samples
from polyrhythm_experiments.reproduce.figures import Measured, difference, mean_text, over_seeds, percent, plain, ratio
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial
from polyrhythm_experiments.reproduce.selsync.trials import ITERATIONS, REGIMES, cluster, skewed, trial

OFTEN = "fedavg:1,0.05"
"""FedAvg that exchanges about as often as SelSync 0.3."""
GATHERED = "selsync:0.25,aggregate=gradients"
"""As in the paper's figure 9."""
LONGER = 2
"""So many times the steps."""
DRIFTS: dict[str, dict[str, Any]] = {
    **REGIMES,
    "momentum 0.9, rate 0.01": {"learning_rate": 0.01},
    "no momentum, rate 0.5": {"momentum": 0.0, "learning_rate": 0.5},
}
"""Where replicas drift apart under GA; the last two take each other's momentum at the same rate / (1 - momentum)."""
MIXED = {"FedAvg (1, 0.1), injection (0.5, 0.5)": (0.5, 0.5), "FedAvg (1, 0.1), injection (0.75, 0.75)": (0.75, 0.75)}
ALIKE = "SelSync 0.3, i.i.d. data"


def cause_trials(lab: Lab) -> dict[str, Trial]:
    found = {"often": trial(lab, OFTEN), "chunks/sorted": trial(lab, "selsync:0.3", partition="sorted")}
    for delta in (0.3, 0.5):
        found[f"longer/{delta}"] = longer(lab, delta)
    for title, regime in DRIFTS.items():
        for kind, policy in (("PA", "selsync:0.3"), ("GA", "selsync:0.3,aggregate=gradients")):
            found[f"aggregate/{title}/{kind}"] = trial(lab, policy, **regime)
    for title, regime in REGIMES.items():
        for partition in ("seldp", "defdp"):
            found[f"chunks/{title}/{partition}"] = trial(lab, GATHERED, partition=partition, **regime)
    found |= {f"skew/{name}": skewed(lab, "fedavg:1,0.1", shares) for name, shares in MIXED.items()}
    return found | {f"skew/{ALIKE}": skewed(lab, "selsync:0.3", None, partition="seldp")}


def longer(lab: Lab, delta: float) -> Trial:
    """SelSync with more steps; its rate decays as much later."""
    return Trial(cluster(lab, LONGER * ITERATIONS, 16, partition="seldp"), f"selsync:{delta}")


def accuracies(runs: Runs) -> list[float | None]:
    return [run.final_accuracy for run in runs]


def replica_accuracies(runs: Runs) -> list[float | None]:
    return [run.replica_accuracy for run in runs]


def durations(runs: Runs) -> list[float | None]:
    return [run.duration_s for run in runs]


def lssr(runs: Runs) -> Measured:
    return over_seeds([run.lssr for run in runs], plain)


def less(runs: Runs, base: Runs) -> str:
    """The mean difference of accuracies."""
    return mean_text(difference(accuracies(runs), accuracies(base)))


NEAR = 0.01
"""How far below BSP's final accuracy a run must come for its time to count."""


def near_s(runs: Runs, base: Runs, below: float = NEAR) -> list[float | None]:
    """Time at which each seed comes so near to the final accuracy that BSP has with the same seed."""
    return [reached_s(run, (bsp.final_accuracy or 0.0) - below) for run, bsp in zip(runs, base, strict=True)]


def near_samples(runs: Runs, base: Runs, below: float = NEAR) -> list[float | None]:
    """As `near_s`, in samples."""
    return [reached_samples(run, (bsp.final_accuracy or 0.0) - below) for run, bsp in zip(runs, base, strict=True)]


def sooner(runs: Runs, base: Runs, below: float = NEAR) -> Measured:
    """How many times sooner than BSP a run comes near to BSP's final accuracy."""
    return ratio(near_s(base, base, below), near_s(runs, base, below))


def less_note(runs: Results, delta: str) -> str:
    """What more steps, and momentum that is averaged, change in the accuracy less BSP's."""
    base = runs["table/BSP"]
    tried = [f"with {LONGER} times as many, and decays as much later, it is {less(runs[f'longer/{delta}'], base)}"]
    averaged = runs.get(f"stretch/SelSync {delta}, momentum averaged")
    if averaged:
        tried.append(f"at equal steps and with momentum averaged along it is {less(averaged, base)}")
    return f"The steps: {'; '.join(tried)}."


def speed_note(runs: Results, delta: str) -> str:
    """What a speedup comes from: exchanges that are saved, and samples that are needed more."""
    base, ours, more = runs["table/BSP"], runs[f"table/SelSync delta = {delta}"], runs[f"longer/{delta}"]
    equal = mean_text(ratio(durations(base), durations(ours)))
    samples = mean_text(ratio(near_samples(ours, base), near_samples(base, base)))
    return (
        f"Equal steps take BSP {equal} as long. The samples to the target over BSP's: {samples}. At BSP - 2 pt it "
        f"is {mean_text(sooner(ours, base, 2 * NEAR))}; with {LONGER} times the steps, at BSP - 1 pt, "
        f"{mean_text(sooner(more, base))}."
    )


def often_note(runs: Results) -> str:
    ours, fed = runs["table/SelSync delta = 0.3"], runs["often"]
    return (
        f"The exchanges: against FedAvg (1, 0.05), whose LSSR is {mean_text(lssr(fed))} and SelSync's "
        f"{mean_text(lssr(ours))}, it is {less(ours, fed)}."
    )


def tie_note(runs: Results) -> str:
    shares = [mean_text(lssr(runs[f"table/{name}"])) for name in ("SelSync delta = 0.5", "FedAvg (1, 0.125)")]
    return f"The exchanges: the LSSR is {shares[0]} and {shares[1]}. At LSSRs that differ, see the row above."


def push_note(runs: Results) -> str:
    base = runs["table/BSP"]
    texts = [f"{less(runs[f'table/SSP s = 100, rate / {share}'], base)} at 1/{share}" for share in (4, 16)]
    return f"The rate of a push: {', '.join(texts)} of BSP's rate (table)."


def chunk_note(runs: Results) -> str:
    """What averaging parameters, and chunks that are not random, change in SelDP less DefDP."""
    averaged = [f"{less(runs[f'data/{delta}/seldp'], runs[f'data/{delta}/defdp'])} at {delta}" for delta in (0.3, 0.5)]
    apart = less(runs["data/0.3/seldp"], runs["chunks/sorted"])
    return (
        f"Not known. With parameters averaged: {', '.join(averaged)}. Against chunks sorted by label, with parameters "
        f"averaged and delta 0.3: {apart}."
    )


def drift_note(runs: Results) -> str:
    """PA less GA where rate and momentum change one at a time."""
    texts = [f"{less(runs[f'aggregate/{title}/PA'], runs[f'aggregate/{title}/GA'])} ({title})" for title in DRIFTS]
    return f"Rate and momentum, by the mean of replicas: {', '.join(texts)} (table)."


def by_drift(runs: Results) -> Grid:
    """Accuracy under PA, and under GA of the mean of replicas and of one of them."""
    cells = [[title, *map(str, drift_cells(runs, title))] for title in DRIFTS]
    headings = ("", "PA", "GA, mean of replicas", "GA, one replica", "LSSR, PA", "LSSR, GA")
    return Grid("By rate and momentum", headings, cells)


def drift_cells(runs: Results, title: str) -> list[Measured]:
    averaged, drifting = runs[f"aggregate/{title}/PA"], runs[f"aggregate/{title}/GA"]
    scores = (accuracies(averaged), accuracies(drifting), replica_accuracies(drifting))
    return [*(over_seeds(score, percent) for score in scores), lssr(averaged), lssr(drifting)]


def mix_note(runs: Results, shares: tuple[float, float]) -> str:
    """How much of the gain injection alone brings."""
    (name,) = (name for name, each in MIXED.items() if each == shares)
    return f"The data: FedAvg with the same injection gains {less(runs[f'skew/{name}'], runs['skew/FedAvg (1, 0.1)'])}."


def fire_note(runs: Results) -> str:
    """How often Delta fires with and without injection, and on data that are alike."""
    names = ("SelSync 0.3, no injection", "SelSync (0.5, 0.5, 0.3)", ALIKE)
    alone, mixed, alike = (mean_text(lssr(runs[f"skew/{name}"])) for name in names)
    return (
        f"Delta at 0.3 fires less often on data that are alike: the LSSR is {alone} with one label a worker, {mixed} "
        f"with injection (0.5, 0.5), {alike} on i.i.d. data."
    )
