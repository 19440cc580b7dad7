"""The cluster by the authors' logs: what sets BSP and ASP apart, and what links and step times alone would do."""

from dataclasses import replace
from typing import NamedTuple

import msgspec

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.sim import Compute, Scenario
from polyrhythm_experiments.reproduce.figures import mean_text, over_seeds, seconds
from polyrhythm_experiments.reproduce.lab import Lab, Results, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings
from polyrhythm_experiments.reproduce.sync_switch.times import faster
from polyrhythm_experiments.reproduce.sync_switch.trials import (
    BATCHES,
    CHOSEN,
    COMBINE_S,
    SETUPS,
    scenario_of,
    switch,
    timed,
)

LINKS_GBPS = (0.1, 1.0, 10.0)
"""Of one server."""
JITTERS = (0.05, 0.5, 2.0)
"""Standard deviation of log-normal step times, as a share of their mean."""
LOGGED_SHARE = 0.05
"""Under BSP in the runs of the logs that the paper calls 6.25 %."""
BOTH = {"BSP": "bsp", "ASP": "asp"}


class Logged(NamedTuple):
    """What the logs, or Table I, have of a setup.

    Args:
        ratio: throughput of ASP over that of BSP.
        how: where it is from.
        round_s: of BSP.
        step_s: of a worker under ASP.
    """

    ratio: str
    how: str
    round_s: str
    step_s: str


LOGGED = {
    1: Logged("6.59x", "figure 4; logs: 5 runs of BSP of 10,532 s, 4 of ASP of 1,598 s", "1.32 s", "0.2 s"),
    2: Logged("1.87x", "Table I: 1.66x over 0.89x; no logs", "not known", "not known"),
    3: Logged("14x", "logs: 3 runs of BSP of 9,631 s, 3 of a switch at 50 % of 5,158 s", "2.41 s", "0.171 s"),
}


def calibration_trials(lab: Lab) -> dict[str, Trial]:
    """Times alone: setup 3 at the steps of setup 1, and setup 1 by links and by jitter if the server has no work."""
    plain = without_work(timed(scenario_of(lab, SETUPS[1])))
    steps = replace(SETUPS[3], compute_s=SETUPS[1].compute_s)
    scenarios = {"steps": timed(scenario_of(lab, steps))}
    scenarios |= {f"times/{number}": timed(scenario_of(lab, setup)) for number, setup in SETUPS.items()}
    found = {"times/0.05": Trial(timed(scenario_of(lab, SETUPS[1])), switch(LOGGED_SHARE)), **thin_batches(lab)}
    scenarios |= {f"link/{gbps:g}": one_server(plain, gbps) for gbps in LINKS_GBPS}
    scenarios |= {
        f"jitter/{share:g}": msgspec.structs.replace(plain, compute=Compute(distribution="log-normal", deviation=share))
        for share in JITTERS
    }
    return found | {
        f"{key}/{name}": Trial(each, spec) for key, each in scenarios.items() for name, spec in BOTH.items()
    }


def without_work(scenario: Scenario) -> Scenario:
    return msgspec.structs.replace(scenario, network=msgspec.structs.replace(scenario.network, combine_s=0.0))


def one_server(scenario: Scenario, gbps: float) -> Scenario:
    network = msgspec.structs.replace(scenario.network, server_gbps=gbps, shards=1)
    return msgspec.structs.replace(scenario, network=network)


def thin_batches(lab: Lab) -> dict[str, Trial]:
    """The mini-batches of figure 8(a) where messages take long."""
    scenario = one_server(timed(scenario_of(lab, SETUPS[1])), LINKS_GBPS[0])
    return {f"thin/{size}": Trial(scenario, f"{CHOSEN},batch={size}" if size != 32 else CHOSEN) for size in BATCHES}


def calibrated(runs: Results) -> DocumentSection:
    """Figure 4, and how the cluster was chosen."""
    rows = [
        ClaimRow(f"throughput of ASP over BSP's, setup {number}", logged.how, logged.ratio,
                 faster(runs[f"times/{number}/ASP"], runs[f"times/{number}/BSP"]))
        for number, logged in LOGGED.items()
    ]  # fmt: skip
    steps = faster(runs["steps/ASP"], runs["steps/BSP"])
    rows.append(ClaimRow("the same, setup 3 with the step time of setup 1", "logs", LOGGED[3].ratio, steps, STEPS))
    return findings("Throughput: figure 4", TEXT, rows, [rounds(runs), alone(runs)], [bars(runs)])


STEPS = f"A step of setup 3 is {LOGGED[3].step_s} in the logs, of setup 1 {LOGGED[1].step_s}; the row above has both."
TEXT = (
    "Times alone. The logs have the time of a round of BSP and of a step of ASP (table below). BSP's round is longer "
    "by about 0.14 s for each worker, in setup 1 and in setup 3. So here the server works for "
    f"{COMBINE_S:g} s on each gradient of an update of BSP (`network.combine_s`), in every setup, "
    "and on none under ASP. The step times are those of the "
    "logs; that of setup 2 is chosen for Table I's ratio. What the server does in that time is not known. Links and "
    "step times that vary bring less in the simulator (last table)."
)


def rounds(runs: Results) -> Grid:
    cells = [
        [str(number), logged.round_s, round_text(runs, number, "BSP"), logged.step_s, round_text(runs, number, "ASP")]
        for number, logged in LOGGED.items()
    ]
    return Grid("Times", ("setup", "BSP, a round, logs", "here", "ASP, a step of a worker, logs", "here"), cells)


def round_text(runs: Results, number: int, name: str) -> str:
    """Time in which every worker makes one step."""
    group = runs[f"times/{number}/{name}"]
    steps = [run.duration_s / (sum(run.steps_by_worker.values()) / SETUPS[number].workers) for run in group]
    return mean_text(over_seeds(steps, seconds))


def alone(runs: Results) -> Grid:
    """What links and jitter bring if the server has no work."""
    cells = [[f"one server of {gbps:g} Gbit/s", ratio_text(runs, f"link/{gbps:g}")] for gbps in LINKS_GBPS]
    cells += [[f"log-normal steps, deviation {share:.0%}", ratio_text(runs, f"jitter/{share:g}")] for share in JITTERS]
    return Grid("Setup 1 if the server has no work", ("cluster", "throughput of ASP over BSP's"), cells)


def ratio_text(runs: Results, key: str) -> str:
    return str(faster(runs[f"{key}/ASP"], runs[f"{key}/BSP"]))


def bars(runs: Results) -> Chart:
    names = [f"setup {number}" for number in SETUPS]
    series = [
        Series(
            name,
            names,
            [over_seeds([run.samples_per_s for run in runs[f"times/{n}/{name}"]]).value or 0.0 for n in SETUPS],
        )
        for name in BOTH
    ]
    caption = "Samples a second, mean over seeds; figure 4 of the paper."
    return drawing("throughput", "Throughput", caption, ("", "samples/s"), series, kind="bars")


def batch_note(runs: Results, size: int) -> str:
    """What messages that take long do to mini-batches of a size."""
    thin = mean_text(faster(runs[f"thin/{size}"], runs["thin/32"]))
    return f"Messages: {thin} with one server of {LINKS_GBPS[0]:g} Gbit/s."
