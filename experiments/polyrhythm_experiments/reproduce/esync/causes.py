"""Runs that test the reasons on the page on ESync: each takes away, or changes, one thing that a reason names."""

import math
from collections.abc import Sequence

import msgspec

from polyrhythm.report.document import Grid
from polyrhythm.sim import Device, Scenario
from polyrhythm.sim.cluster.compute import Compute
from polyrhythm.sim.cluster.links import BYTES_PER_GIGABIT, Network
from polyrhythm_experiments.reproduce.esync.live import BYTES_PER_S, FAST, FAST_S, MESSAGE_BYTES, SLOWDOWN
from polyrhythm_experiments.reproduce.esync.trials import (
    EQUAL_S,
    PARTITIONS,
    POLICIES,
    RATES,
    SPEED_SAMPLES,
    TARGET,
    paper_cluster,
    timed,
    to_target,
    trained,
)
from polyrhythm_experiments.reproduce.figures import (
    Measured,
    difference,
    mean_text,
    over_seeds,
    percent,
    ratio,
    seconds,
)
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs, Trial

LINKS_GBPS = (2.5, 10.0, 25.0, 40.0, 100.0)
"""Of the server; the devices' NICs are as fast."""
JITTERS = (0.0, 0.01, 0.03)
MOST = (1, 3, 10, 30, 100)
"""Local steps that a round is cut to."""
ALIKE_STEPS = 115
"""Local steps of every device, where all are alike: as many as a fast one makes in a round of ESync."""
APART = ("Dirichlet(0.3)", "2 shards a device", "sorted")


def cause_trials(lab: Lab) -> dict[str, Trial]:
    return {**links(lab), **jitters(lab), **fewer_steps(lab), **alike(lab), **played(lab)}


def links(lab: Lab) -> dict[str, Trial]:
    """Without a model: the server's link, and none at all."""
    found: dict[str, Trial] = {}
    for gbps in (*LINKS_GBPS, math.inf):
        cluster = with_links(of_length(lab, paper_cluster()), gbps)
        found |= {f"link/{gbps:g}/{name}": Trial(cluster, POLICIES[name]) for name in ("SSGD", "ASGD", "ESync")}
    return found


def of_length(lab: Lab, cluster: Scenario) -> Scenario:
    return timed(cluster, 30.0 if lab.quick else 300.0)


def with_links(cluster: Scenario, gbps: float) -> Scenario:
    network = msgspec.structs.replace(cluster.network, server_gbps=gbps)
    devices = [msgspec.structs.replace(device, bandwidth_gbps=gbps) for device in cluster.devices]
    return msgspec.structs.replace(cluster, network=network, devices=devices)


def jitters(lab: Lab) -> dict[str, Trial]:
    """Without a model: step times that vary less."""
    plain = of_length(lab, paper_cluster())
    return {
        f"jitter/{share:g}": Trial(msgspec.structs.replace(plain, compute=jitter(share)), "esync") for share in JITTERS
    }


def jitter(share: float) -> Compute:
    return Compute(distribution="normal", deviation=share) if share else Compute()


def fewer_steps(lab: Lab) -> dict[str, Trial]:
    """ESync whose rounds are cut to so many local steps."""
    scenario = to_target(lab, RATES[1], SPEED_SAMPLES[RATES[1]])
    return {f"most/{most}": Trial(scenario, f"esync:most={most}", TARGET) for most in MOST}


def alike(lab: Lab) -> dict[str, Trial]:
    """Data that differ between devices that are alike: all make the local steps of a fast one."""
    found: dict[str, Trial] = {}
    for title in APART:
        scenario = trained(lab, seconds=EQUAL_S, every=60_000, partition=PARTITIONS[title])
        devices = [msgspec.structs.replace(scenario.devices[1], count=scenario.workers)]
        found[f"alike/{title}"] = Trial(msgspec.structs.replace(scenario, devices=devices), f"local:{ALIKE_STEPS}")
    return found


def played(lab: Lab) -> dict[str, Trial]:
    """The job on real processes, simulated: with its links, with faster ones, and with the paper's devices."""
    found: dict[str, Trial] = {}
    for title, bytes_per_s in (("thin", BYTES_PER_S), ("free", math.inf)):
        gbps = bytes_per_s / BYTES_PER_GIGABIT
        devices = [
            Device(compute_s=FAST_S * SLOWDOWN, bandwidth_gbps=gbps),
            Device(compute_s=FAST_S, count=FAST, bandwidth_gbps=gbps),
        ]
        cluster = Scenario(name="live", devices=devices, network=Network(message_bytes=MESSAGE_BYTES))
        found |= {
            f"played/{title}/{name}": Trial(of_length(lab, cluster), POLICIES[name])
            for name in ("SSGD", "ASGD", "ESync")
        }
    return found


def speeds(runs: Runs) -> list[float | None]:
    return [run.samples_per_s for run in runs]


def traffic_per_s(runs: Runs) -> list[float | None]:
    return [run.bytes_total / run.duration_s for run in runs]


def target_s(runs: Runs) -> list[float | None]:
    return [run.time_to_target_s for run in runs]


def fast_wait_s(runs: Runs) -> list[float | None]:
    """Time a round that a fast device waits for the others."""
    fast = range(2, 6)
    return [sum(run.idle_fraction_by_worker[w] for w in fast) / 4 * run.duration_s / run.updates for run in runs]


def link_ratios(runs: Results, gbps: float) -> tuple[Measured, Measured, Measured]:
    """Samples a second of ESync over SSGD's and over ASGD's, and bytes a second of ASGD over ESync's."""
    ssgd, asgd, esync = (runs[f"link/{gbps:g}/{name}"] for name in ("SSGD", "ASGD", "ESync"))
    return (
        ratio(speeds(esync), speeds(ssgd)),
        ratio(speeds(esync), speeds(asgd)),
        ratio(traffic_per_s(asgd), traffic_per_s(esync)),
    )


def by_link(runs: Results) -> Grid:
    """What the server's link decides."""
    cells = [[link_name(gbps), *map(str, link_ratios(runs, gbps))] for gbps in (*LINKS_GBPS, math.inf)]
    headings = ("links", "samples/s, ESync over SSGD", "samples/s, ESync over ASGD", "bytes/s, ASGD over ESync")
    return Grid("By the links of the server and of the devices", headings, cells)


def link_name(gbps: float) -> str:
    return "no time for transfers" if math.isinf(gbps) else f"{gbps:g} Gbit/s"


def link_note(runs: Results, which: int) -> str:
    """A ratio of `link_ratios` at the ends of the table."""
    texts = [f"{mean_text(link_ratios(runs, gbps)[which])} at {gbps:g} Gbit/s" for gbps in (2.5, 25.0, 100.0)]
    return f"The links: {', '.join(texts)} (table by links)."


def by_jitter(runs: Results) -> Grid:
    cells = [
        [f"{100 * share:g} %", str(over_seeds(fast_wait_s(runs[f"jitter/{share:g}"]), seconds))] for share in JITTERS
    ]
    return Grid("By the jitter of the step times", ("jitter", "wait of a fast device a round"), cells)


def jitter_note(runs: Results) -> str:
    texts = [
        f"{mean_text(over_seeds(fast_wait_s(runs[f'jitter/{share:g}']), seconds))} at {100 * share:g} %"
        for share in JITTERS[:-1]
    ]
    return f"The jitter: {', '.join(texts)} (table by jitter)."


def by_steps(runs: Results) -> Grid:
    """What a round's local steps bring."""
    ssgd, full = (runs[f"speed/{RATES[1]:g}/{name}"] for name in ("SSGD", "ESync"))
    groups = {f"at most {most}": runs[f"most/{most}"] for most in MOST} | {"as many as fit": full}
    cells = [
        [name, str(over_seeds(target_s(group), seconds)), str(ratio(target_s(ssgd), target_s(group)))]
        for name, group in groups.items()
    ]
    headings = ("local steps of a round", f"time to {percent(TARGET)}", "SSGD over it")
    return Grid(f"ESync with fewer local steps, rate {RATES[1]:g}", headings, cells)


def steps_note(runs: Results) -> str:
    ssgd = target_s(runs[f"speed/{RATES[1]:g}/SSGD"])
    texts = [f"{mean_text(ratio(ssgd, target_s(runs[f'most/{most}'])))} with at most {most}" for most in (3, 10, 30)]
    return f"The local steps of a round: {', '.join(texts)} at rate {RATES[1]:g} (table by local steps)."


def alike_note(ssgd: Sequence[float | None], equal: Sequence[float | None]) -> str:
    """Accuracy less SSGD's where all devices make the steps of a fast one."""
    without = mean_text(difference(equal, ssgd))
    return f"Unequal steps: six fast devices that make {ALIKE_STEPS} local steps each come to {without}."


def over(runs: Results, place: str, under: str) -> Measured:
    """Samples a second of ESync over those of another policy."""
    return ratio(speeds(runs[f"{place}/ESync"]), speeds(runs[f"{place}/{under}"]))


def played_note(runs: Results, under: str, titles: Sequence[str]) -> str:
    """ESync over another policy in the simulated job."""
    texts = {"thin": "with these devices and links", "free": "with links that take no time"}
    found = [over(runs, f"played/{title}", under) for title in titles]
    said = [f"{mean_text(one)} {texts[title]}" for one, title in zip(found, titles, strict=True)]
    return f"The simulator gives {', '.join(said)}."
