"""Table 1 of the paper on ESync, both columns: each network's cluster, trained until its accuracy stands still."""

from typing import NamedTuple

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.sim import Scenario
from polyrhythm_experiments.reproduce.convergence import converged_s, last_score
from polyrhythm_experiments.reproduce.esync.converged import DEEPER, LAST_RATE, LAST_S, NEAR, alone, said_of
from polyrhythm_experiments.reproduce.esync.table import BASE, LINKS, NETWORKS, PublishedNetwork, of_network, sooner
from polyrhythm_experiments.reproduce.esync.trials import ESYNC_MODES, MODES, RATE, to_target, trained
from polyrhythm_experiments.reproduce.figures import Measured, difference, over_seeds, percent, seconds
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings


class PublishedAccuracy(NamedTuple):
    """Two cells of table 1."""

    esync: float
    standalone: float


PUBLISHED = {
    "AlexNet": PublishedAccuracy(0.929, 0.928),
    "Inception-v3": PublishedAccuracy(0.937, 0.932),
    "ResNet-18-v1": PublishedAccuracy(0.926, 0.926),
    "ResNet-50-v1": PublishedAccuracy(0.914, 0.910),
    "ResNet-50-v2": PublishedAccuracy(0.918, 0.920),
    "MobileNet-v1": PublishedAccuracy(0.903, 0.902),
}
LONGEST = 10
"""Times the time of `LAST_S` that a run may take to converge."""


def network_trials(lab: Lab) -> dict[str, Trial]:
    """Each network's cluster to convergence and to a near target, and a CNN to convergence."""
    last, near = to_convergence(lab), to_target(lab, LAST_RATE, 3_840)
    return {
        **{
            last_place(network, name): Trial(of_network(last, network, LINKS[BASE]), MODES[name], until="accuracy")
            for network in NETWORKS
            for name in ESYNC_MODES
        },
        **{
            near_place(network, name): Trial(of_network(near, network, LINKS[BASE]), policy, NEAR)
            for network in NETWORKS
            for name, policy in MODES.items()
        },
        **deeper_trials(lab),
    }


def deeper_trials(lab: Lab) -> dict[str, Trial]:
    if lab.quick:
        return {}
    devices = to_convergence(lab, RATE, "cnn"), alone(lab, RATE, LAST_S * LONGEST, "cnn")
    policies = MODES[DEEPER[0]], "bsp"
    return {
        f"deeper/{name}": Trial(scenario, policy, until="accuracy")
        for name, scenario, policy in zip(DEEPER, devices, policies, strict=True)
    }


def to_convergence(lab: Lab, rate: float = LAST_RATE, model: str = "mlp") -> Scenario:
    longest_s = LAST_S / 4 if lab.quick else LAST_S * LONGEST
    return trained(lab, seconds=longest_s, every=120_000, rate=rate, model=model, samples=500_000_000)


def last_place(network: PublishedNetwork, name: str) -> str:
    return f"network/{network.name}/{name}"


def near_place(network: PublishedNetwork, name: str) -> str:
    return f"network/near/{network.name}/{name}"


def networks_section(runs: Results) -> DocumentSection:
    rows = [
        ClaimRow(
            f"accuracy, {name}, less standalone, {network.name}",
            "table 1",
            f"{100 * (PUBLISHED[network.name].esync - PUBLISHED[network.name].standalone):+.1f} pt",
            less_standalone(runs, network, name),
        )
        for name in ESYNC_MODES
        for network in NETWORKS
    ]
    return findings("Table 1 to convergence", NETWORKS_TEXT, [*deeper_rows(runs), *rows], [by_network(runs)])


NETWORKS_TEXT = (
    f"The clusters of table 1 by network, with the MLP of this page at rate {LAST_RATE:g}; a run ends when it has "
    "converged, as in the section above. A device alone makes the same steps whichever the network, so the one of the "
    f"section above stands for all. A CNN of two convolutions, at rate {RATE:g}, is trained on the page's cluster."
)


def less_standalone(runs: Results, network: PublishedNetwork, name: str) -> Measured:
    return difference(last_score(runs[last_place(network, name)]), last_score(runs["converged/standalone"]))


def deeper_rows(runs: Results) -> list[ClaimRow]:
    """The CNN's accuracies, if it was trained."""
    if f"deeper/{DEEPER[0]}" not in runs:
        return []
    esync, standalone = (last_score(runs[f"deeper/{name}"]) for name in DEEPER)
    what = f"accuracy, {DEEPER[0]}, less {DEEPER[1]}, CNN"
    return [
        ClaimRow(what, "table 1", "-0.2 to +0.5 pt", difference(esync, standalone)),
        *(
            ClaimRow(f"accuracy, {name}, CNN", "table 1", said_of(name), over_seeds(score, percent))
            for name, score in zip(DEEPER, (esync, standalone), strict=True)
        ),
    ]


def by_network(runs: Results) -> Grid:
    """Accuracies, times to convergence, and how much sooner than SSGD a near target is reached."""
    headings = (
        "network",
        "paper: ESync, standalone",
        *(f"accuracy, {mode}" for mode in short_modes()),
        *(f"converged after, {mode}" for mode in short_modes()),
        *(f"time to {percent(NEAR)}, SSGD over {mode}" for mode in short_modes()),
    )
    return Grid("By network", headings, [network_cells(runs, network) for network in NETWORKS])


def short_modes() -> list[str]:
    return [name.removeprefix("ESync, ") for name in ESYNC_MODES]


def network_cells(runs: Results, network: PublishedNetwork) -> list[str]:
    groups = [runs[last_place(network, name)] for name in ESYNC_MODES]
    published, ssgd = PUBLISHED[network.name], runs[near_place(network, "SSGD")]
    return [
        network.name,
        f"{percent(published.esync)}, {percent(published.standalone)}",
        *(str(over_seeds(last_score(group), percent)) for group in groups),
        *(str(over_seeds([converged_s(run) for run in group], seconds)) for group in groups),
        *(str(sooner(ssgd, runs[near_place(network, name)])) for name in ESYNC_MODES),
    ]
