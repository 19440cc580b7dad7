"""Table 1 of the paper on ESync by network: bytes and step times of the six, with the learning task of the page."""

from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

import msgspec

from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.sim import Device, Scenario
from polyrhythm.telemetry.result import RunResult
from polyrhythm_experiments.reproduce.esync.trials import ESYNC_MODES, MODES, RATES, SPEED_SAMPLES, TARGET, to_target
from polyrhythm_experiments.reproduce.figures import Measured, mean_text, over_seeds, percent, ratio, seconds
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial
from polyrhythm_experiments.reproduce.page import ClaimRow, findings


class PublishedNetwork(NamedTuple):
    """A row of table 1.

    Args:
        name: as in the paper.
        parameters: of MXNet's model of that name, for 1000 classes.
        multiply_adds: of its forward pass on one image, in 1e9.
        pixels: side of that image.
        speedup: of ESync over SSGD, as the paper prints it.
    """

    name: str
    parameters: int
    multiply_adds: float
    pixels: int
    speedup: str


REFERENCE = PublishedNetwork("ResNet-18-v1", 11_699_112, 1.82, 224, "7x")
"""The network whose step times are the paper's."""

NETWORKS = (
    PublishedNetwork("AlexNet", 61_100_840, 0.71, 224, "27x"),
    PublishedNetwork("Inception-v3", 23_869_000, 5.72, 299, "7x"),
    REFERENCE,
    PublishedNetwork("ResNet-50-v1", 25_629_032, 3.87, 224, "4x"),
    PublishedNetwork("ResNet-50-v2", 25_595_060, 4.10, 224, "6x"),
    PublishedNetwork("MobileNet-v1", 4_253_864, 0.57, 224, "2x"),
)
"""Parameters from MXNet's Gluon model zoo, multiply-adds from MXOP (github.com/hey-yahei/OpSummary.MXNet)."""


class Links(NamedTuple):
    """What the paper does not state of its network: latency of a message one way, and the server's link."""

    latency_s: float = 0.0
    server_gbps: float = 10.0


LINKS = {
    "10 Gbit/s": Links(),
    "a query of 40 ms": Links(latency_s=0.02),
    "a server of 1 Gbit/s": Links(server_gbps=1.0),
}
BASE = next(iter(LINKS))
TABLE_RATE = RATES[1]


def table_trials(lab: Lab) -> dict[str, Trial]:
    """Time to the target for each network, over each kind of link, under SSGD and both modes of ESync."""
    task = to_target(lab, TABLE_RATE, SPEED_SAMPLES[TABLE_RATE])
    return {
        table_place(network, links, name): Trial(of_network(task, network, LINKS[links]), policy, TARGET)
        for network in NETWORKS
        for links in LINKS
        for name, policy in MODES.items()
    }


def table_place(network: PublishedNetwork, links: str, name: str) -> str:
    return f"table/{network.name}/{links}/{name}"


def of_network(scenario: Scenario, network: PublishedNetwork, links: Links) -> Scenario:
    """The scenario with the network's messages and step times.

    >>> from polyrhythm.sim import load_scenario
    >>> alexnet = of_network(load_scenario("mixed-hardware"), NETWORKS[0], Links())
    >>> alexnet.network.message_bytes, [round(step_s, 4) for step_s in alexnet.mean_compute_s[1:3]]
    (244403360.0, [1.3654, 0.0117])
    """
    factor = network.multiply_adds / REFERENCE.multiply_adds
    devices = [msgspec.structs.replace(each, compute_s=each.compute_s * factor) for each in scenario.devices]
    settings = {"message_bytes": 4.0 * network.parameters, **links._asdict()}
    return msgspec.structs.replace(
        scenario, name=network.name, devices=devices, network=msgspec.structs.replace(scenario.network, **settings)
    )


def table_section(runs: Results, devices: list[Device]) -> DocumentSection:
    """Speedups beside the paper's, what they come from, and what was assumed."""
    rows = [
        ClaimRow(
            f"time to {percent(TARGET)}, SSGD over ESync, {kind}, {network.name}",
            "table 1",
            network.speedup,
            speedup(runs, network, BASE, f"ESync, {kind}"),
            rounds_note(*(runs[table_place(network, BASE, name)] for name in ("SSGD", f"ESync, {kind}"))),
        )
        for kind in ("blocking", "non-blocking")
        for network in NETWORKS
    ]
    return findings("Table 1 by network", f"{TABLE_TEXT} {table_note(runs)}", rows, [assumed(devices), by_links(runs)])


TABLE_TEXT = (
    f"The rows differ in bytes and times alone: task, model and the rate of {TABLE_RATE:g} are those of this page. "
    "Assumptions: a message is the parameters of MXNet's model for 1000 classes (Gluon model zoo) in fp32. A step is "
    "the paper's 3.5 s or 0.03 s, taken for ResNet-18, times the multiply-adds of a forward pass (MXOP) over those of "
    "ResNet-18, so a slow device is 117 times as slow in each row."
)


def table_note(runs: Results) -> str:
    """How far what was tried comes to the paper's figures."""
    spans = ", ".join(f"{span(runs, links)} with {links}" for links in LINKS)
    return (
        f"The paper has 2x (MobileNet-v1) to 27x (AlexNet). Here, blocking, it is {spans}. What brings the paper's "
        "figures is not known; fewer local steps bring some as low (table by local steps)."
    )


def span(runs: Results, links: str) -> str:
    """The lowest and the highest speedup of the blocking mode, with their networks."""
    found = [(speedup(runs, network, links, "ESync, blocking"), network.name) for network in NETWORKS]
    low, *_, high = sorted(found, key=lambda pair: pair[0].value or 0.0)
    return f"{mean_text(low[0])} ({low[1]}) to {mean_text(high[0])} ({high[1]})"


def assumed(devices: list[Device]) -> Grid:
    """Messages and step times of each network."""
    headings = ("network", "parameters", "message", "multiply-adds an image", "step, slow", "step, fast")
    return Grid("Assumed for each network", headings, [assumed_cells(network, devices) for network in NETWORKS])


def assumed_cells(network: PublishedNetwork, devices: list[Device]) -> list[str]:
    factor = network.multiply_adds / REFERENCE.multiply_adds
    compute = f"{network.multiply_adds:g} G at {network.pixels} x {network.pixels}"
    steps = [f"{device.compute_s * factor:.3g} s" for device in devices]
    return [network.name, f"{network.parameters:,}", f"{4e-6 * network.parameters:.1f} MB", compute, *steps]


def by_links(runs: Results) -> Grid:
    """Speedups over other links."""
    headings = [f"{name.removeprefix('ESync, ')}, {links}" for links in LINKS for name in ESYNC_MODES]
    cells = [
        [
            network.name,
            network.speedup,
            *(str(speedup(runs, network, links, name)) for links in LINKS for name in ESYNC_MODES),
        ]
        for network in NETWORKS
    ]
    title = f"Time to {percent(TARGET)}, SSGD over ESync, by what the paper does not state of its network"
    return Grid(title, ("network", "paper", *headings), cells)


def speedup(runs: Results, network: PublishedNetwork, links: str, name: str) -> Measured:
    return sooner(*(runs[table_place(network, links, each)] for each in ("SSGD", name)))


def sooner(ssgd: Runs, esync: Runs) -> Measured:
    """How many times as soon the second reaches its target."""
    return ratio([run.time_to_target_s for run in ssgd], [run.time_to_target_s for run in esync])


def rounds_note(ssgd: Runs, esync: Runs) -> str:
    """What a speedup comes from: rounds to the target, their length, and local steps."""
    rounds = [over_seeds(list(rounds_to_target(group))) for group in (ssgd, esync)]
    lengths = [over_seeds([run.duration_s / run.updates for run in group], seconds) for group in (ssgd, esync)]
    steps = over_seeds([local_steps(run) for run in esync])
    ssgd_takes, esync_takes = (
        f"{mean_text(count)} rounds of {mean_text(length)}" for count, length in zip(rounds, lengths, strict=True)
    )
    return (
        f"Not known. Here SSGD takes {ssgd_takes}, ESync {esync_takes} with {mean_text(steps)} steps of a fast device "
        "in each."
    )


def rounds_to_target(runs: Runs) -> Iterator[float | None]:
    """Updates of each seed until its target was reached."""
    for run in runs:
        yield next((point.updates for point in run.curve if point.time_s == run.time_to_target_s), None)


def local_steps(run: RunResult) -> float:
    """Steps of a fast device in a round."""
    return fmean(run.steps_by_worker[worker] for worker in range(2, 6)) / run.updates
