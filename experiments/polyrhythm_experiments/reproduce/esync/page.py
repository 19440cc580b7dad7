"""ESync (Li, Zhou and Yu): two slow and four fast devices that meet when the slowest has done one step."""

import math
from collections.abc import Sequence

from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm_experiments.reproduce.curves import accuracy_plot, reached_s
from polyrhythm_experiments.reproduce.esync.causes import (
    APART,
    alike_note,
    by_jitter,
    by_link,
    by_steps,
    cause_trials,
    fast_wait_s,
    jitter_note,
    link_note,
    link_ratios,
    played_note,
    steps_note,
)
from polyrhythm_experiments.reproduce.esync.converged import converged_section, converged_trials
from polyrhythm_experiments.reproduce.esync.converged_networks import network_trials, networks_section
from polyrhythm_experiments.reproduce.esync.live import live_section, lives
from polyrhythm_experiments.reproduce.esync.table import local_steps, rounds_to_target, table_section, table_trials
from polyrhythm_experiments.reproduce.esync.trials import (
    EQUAL_S,
    ESYNC_MODES,
    LATENCIES_S,
    LONG_S,
    MODES,
    PARTITIONS,
    POLICIES,
    RATE,
    RATES,
    REMEDIES,
    TARGET,
    far_place,
    paper_cluster,
    trials,
)
from polyrhythm_experiments.reproduce.figures import (
    Measured,
    difference,
    divided,
    mean_text,
    over_seeds,
    percent,
    plain,
    ratio,
    seconds,
)
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings, reproduction

SOURCE = (
    "Li, Zhou, Yu: *ESync: An Efficient Synchronous Parallel Algorithm for Distributed ML in Heterogeneous Clusters*."
)
MIDDLE = RATES[1]
IID = "i.i.d."
LATE = 5
"""Evaluations whose mean is the accuracy of a run that swings."""


def page(lab: Lab) -> Document:
    runs = lab.run(
        {**trials(lab), **table_trials(lab), **converged_trials(lab), **network_trials(lab), **cause_trials(lab)}
    )
    return reproduction(
        title="ESync, reproduced",
        source=SOURCE,
        conditions=conditions(lab),
        parts=[
            system(runs),
            speed(runs),
            table_section(runs, paper_cluster().devices),
            converged_section(runs, [curves(runs, "i.i.d.")]),
            networks_section(runs),
            skew(runs),
            remedy(runs),
            *([] if lab.quick else [live_section(lives(lab), *live_notes(runs))]),
        ],
        missing=[
            "AlexNet, Inception, ResNet and MobileNet themselves (table 1): their rows have their bytes and their step "
            "times, and the task and the model of this page.",
            "Real devices: the cluster is simulated with the paper's step times, or played by processes that sleep; "
            "what was not put in, is not in it.",
        ],
    )


def conditions(lab: Lab) -> dict[str, str]:
    return {
        "cluster": "2 devices at 3.5 s and 4 at 0.03 s a mini-batch of 64 (the paper's), 3 % jitter, a message of "
        "44.7 MB (ResNet-18), one server and NICs of 10 Gbit/s, first come first served (ours)",
        "task": f"{lab.task()}, an MLP with 64 hidden units, plain SGD",
        "learning rate": "the same for an update, a push and a local step, as in the paper, which has 0.001; "
        f"{RATE:g} unless a line says otherwise",
        "seeds": lab.seed_note,
    }


def of(runs: Sequence[RunResult], name: str) -> list[float | None]:
    return [getattr(run, name) for run in runs]


def bytes_per_s(runs: Runs) -> list[float | None]:
    return [run.bytes_total / run.duration_s for run in runs]


def computing(runs: Runs, workers: Sequence[int]) -> list[float | None]:
    return [sum(run.compute_fraction_by_worker[w] for w in workers) / len(workers) for run in runs]


def system(runs: Results) -> DocumentSection:
    """Figures 4 and 5: throughput, traffic, computing time."""
    at = {name: runs[f"system/{name}"] for name in POLICIES}
    speeds = {name: of(group, "samples_per_s") for name, group in at.items()}
    rows = [
        ClaimRow(
            "samples/s, ESync over SSGD",
            "section 5, fig. 4",
            "33x",
            ratio(speeds["ESync"], speeds["SSGD"]),
            more_note(runs, at["ESync"]),
        ),
        *(
            ClaimRow(
                f"the same, messages take 20 ms, {name.removeprefix('ESync, ')}",
                "section 4.2",
                "33x",
                gain(runs, 0.02, name),
                why,
            )
            for name, why in (("ESync, blocking", ""), ("ESync, non-blocking", WHY_MODE))
        ),
        ClaimRow(
            "samples/s, ESync over ASGD",
            "section 5, fig. 4",
            "3x",
            ratio(speeds["ESync"], speeds["ASGD"]),
            link_note(runs, 1),
        ),
        ClaimRow(
            "bytes/s, ASGD over ESync",
            "section 5, fig. 4",
            "15x",
            ratio(bytes_per_s(at["ASGD"]), bytes_per_s(at["ESync"])),
            link_note(runs, 2),
        ),
        ClaimRow(
            "wait of a fast device a round",
            "section 4.1",
            "below its step of 0.03 s",
            over_seeds(fast_wait_s(at["ESync"]), seconds),
            jitter_note(runs),
        ),
    ]
    names = list(POLICIES)
    table = Grid(
        "Figures 4 and 5",
        ("", "samples/s", "MB/s at the server", "computing, slow devices", "computing, fast devices"),
        [[name, *map(str, system_cells(at[name]))] for name in names],
    )
    series = [
        Series(kind, names, [computed or 0.0 for computed in (over_seeds(computing(at[n], ws)).value for n in names)])
        for kind, ws in (("slow devices", range(2)), ("fast devices", range(2, 6)))
    ]
    figure = drawing(
        "computing", "Computing time", CAPTION_5, ("", "share of the time"), series, kind="bars", percent_y=True
    )
    tables = [table, by_latency(runs), by_link(runs), by_jitter(runs)]
    return findings("Throughput, traffic and computing time", "Times alone, no model.", rows, tables, [figure])


def gain(runs: Results, latency_s: float, name: str) -> Measured:
    """Samples a second over SSGD's at the same latency."""
    at = [of(runs[far_place(latency_s, each)], "samples_per_s") for each in (name, "SSGD")]
    return ratio(at[0], at[1])


def by_latency(runs: Results) -> Grid:
    """Section 4.2: what queries cost by their round trip."""
    rows = []
    for latency_s in LATENCIES_S:
        speeds = [over_seeds(of(runs[far_place(latency_s, name)], "samples_per_s"), plain) for name in MODES]
        gains = [gain(runs, latency_s, name) for name in ESYNC_MODES]
        rows.append([f"{2000 * latency_s:g} ms", *map(str, speeds), *map(str, gains)])
    headings = ("round trip", *(f"{name}, samples/s" for name in MODES), "blocking over SSGD", "non-blocking over SSGD")
    return Grid("By the round trip of a message without a body", headings, rows)


def more_note(runs: Results, esync: Runs) -> str:
    steps = mean_text(over_seeds([local_steps(run) for run in esync]))
    free = mean_text(link_ratios(runs, math.inf)[0])
    return (
        f"A fast device makes {steps} steps a round here. If transfers take no time it is {free} (table by links); "
        "with a query of 40 ms it is the next row's."
    )


WHY_MODE = "Not known: the paper states neither its latency nor its mode."
CAPTION_5 = "Share of their time in which devices compute (the paper's figure 5)."


def system_cells(runs: Runs) -> list[Measured]:
    megabytes = [each / 1e6 if each is not None else None for each in bytes_per_s(runs)]
    shares = [over_seeds(computing(runs, workers), percent) for workers in (range(2), range(2, 6))]
    return [over_seeds(of(runs, "samples_per_s"), plain), over_seeds(megabytes, plain), *shares]


def speed(runs: Results) -> DocumentSection:
    """Table 1 and the text of section 5: time to 80 %."""
    rates = [rate for rate in RATES if f"speed/{rate:g}/ESync" in runs]
    places = [f"speed/{name}" for name in (*(f"{rate:g}" for rate in rates), "cnn") if f"speed/{name}/ESync" in runs]
    cells = [[place.removeprefix("speed/").replace("cnn", "0.05, CNN"), *speed_cells(runs, place)] for place in places]
    rows = [
        ClaimRow(
            f"time to 80 %, SSGD over ESync, rate {rate:g}",
            "section 5, table 1",
            "7x (2x to 27x by model)",
            times_to(runs, f"speed/{rate:g}", "SSGD"),
            steps_note(runs) if rate < 0.1 else round_note(runs, f"speed/{rate:g}"),
        )
        for rate in rates
    ]
    if "speed/cnn/ESync" in runs:
        rows.append(
            ClaimRow(
                "the same, CNN, rate 0.05",
                "table 1",
                "27x AlexNet, 7x ResNet-18, 2x MobileNet",
                times_to(runs, "speed/cnn", "SSGD"),
                round_note(runs, "speed/cnn"),
            )
        )
    for name, said in (("ASGD", "about 1x"), ("SSP(3)", "")):
        what = f"time to 80 %, {name} over ESync, rate {MIDDLE:g}"
        rows.append(ClaimRow(what, "section 5, fig. 3", said, times_to(runs, f"speed/{MIDDLE:g}", name)))
    table = Grid(f"Time to {percent(TARGET)}", ("rate", *POLICIES, "rounds of ESync"), cells)
    text = f"Virtual time until the test accuracy is {percent(TARGET)}."
    return findings("Training speed, i.i.d.", text, rows, [table, by_steps(runs)])


def round_note(runs: Results, place: str) -> str:
    rounds = mean_text(over_seeds(list(rounds_to_target(runs[f"{place}/ESync"]))))
    return f"ESync is there after {rounds} rounds in the mean, and has no model in between."


def times_to(runs: Results, place: str, name: str) -> Measured:
    return ratio(of(runs[f"{place}/{name}"], "time_to_target_s"), of(runs[f"{place}/ESync"], "time_to_target_s"))


def speed_cells(runs: Results, place: str) -> list[str]:
    """Times to the target, and ESync's rounds until then."""
    groups = [runs.get(f"{place}/{name}") for name in POLICIES]
    times = [str(over_seeds(of(group, "time_to_target_s"), seconds)) if group else "" for group in groups]
    return [*times, str(over_seeds(list(rounds_to_target(runs[f"{place}/ESync"]))))]


def late(runs: Runs) -> list[float | None]:
    """Accuracy of each seed: the mean of its last evaluations."""
    return [mean_of(run.curve[-LATE:]) for run in runs]


def at_time(runs: Runs, time_s: float) -> list[float | None]:
    """Accuracy of each seed at a time: the mean of the last evaluations before it."""
    return [mean_of([point for point in run.curve if point.time_s <= time_s][-LATE:]) for run in runs]


def mean_of(points: Sequence[EvalPoint]) -> float | None:
    return sum(point.accuracy for point in points) / len(points) if points else None


def curves(runs: Results, title: str) -> Chart:
    """Accuracy of the first seed against time (figure 3)."""
    key = "curves-" + "".join(character for character in title.lower() if character.isalnum())
    groups = {name: runs[f"accuracy/{title}/{name}"] for name in ("SSGD", "ASGD", "ESync")}
    caption = f"Test accuracy against virtual time, {title}, first seed (the paper's figure 3)."
    return accuracy_plot(key, f"Accuracy, {title}", caption, groups)


def skew(runs: Results) -> DocumentSection:
    """Figure 3, right: data that differ between devices."""
    cells = [[title, *map(str, skew_cells(runs, title))] for title in PARTITIONS]
    headings = ("data", "ESync", "ASGD", "SSGD, same time", f"SSGD, {LONG_S:,.0f} s", "ESync - SSGD, same time")
    rows = [
        ClaimRow(
            f"accuracy, ESync less SSGD after {LONG_S:,.0f} s, {title}",
            "section 5, fig. 3",
            "no loss",
            difference(late(runs[f"accuracy/{title}/ESync"]), late(runs[f"accuracy/{title}/SSGD"])),
            alike_note(late(runs[f"accuracy/{title}/SSGD"]), late(runs[f"alike/{title}"])),
        )
        for title in APART
    ]
    tables = [Grid(f"Accuracy after {EQUAL_S:.0f} s", headings, cells), skewed_times(runs)]
    plots = [curves(runs, title) for title in ("Dirichlet(0.3)", "sorted")]
    text = (
        "The paper does not say how its data differ. Accuracies are means of the last "
        f"{LATE} evaluations; ESync is evaluated at every second round, once in 8 s."
    )
    return findings("Training on data that differ", text, [*skewed_speed(runs), *rows], tables, plots)


def skewed_speed(runs: Results) -> list[ClaimRow]:
    """Times to 80 % where every label is with several devices."""
    esync = reached(runs, "Dirichlet(0.3)", "ESync")
    return [
        ClaimRow(
            f"time to 80 %, {name} over ESync, Dirichlet(0.3), rate {RATE:g}",
            "section 5, fig. 3",
            said,
            ratio(reached(runs, "Dirichlet(0.3)", name), esync),
            f"With equal data it is {mean_text(ratio(reached(runs, IID, name), reached(runs, IID, 'ESync')))} (table).",
        )
        for name, said in (("SSGD", "7x"), ("ASGD", "about 1x"), ("SSP(3)", ""))
    ]


def skewed_times(runs: Results) -> Grid:
    cells = [
        [title, *(str(over_seeds(reached(runs, title, name), seconds)) for name in POLICIES)] for title in PARTITIONS
    ]
    return Grid(f"Time to 80 % at rate {RATE:g}", ("data", *POLICIES), cells)


def reached(runs: Results, title: str, name: str) -> list[float | None]:
    return [reached_s(run, TARGET) for run in runs[f"accuracy/{title}/{name}"]]


def skew_cells(runs: Results, title: str) -> list[Measured]:
    esync, asgd, ssgd = (runs[f"accuracy/{title}/{name}"] for name in ("ESync", "ASGD", "SSGD"))
    early = at_time(ssgd, EQUAL_S)
    plain_cells = [over_seeds(values, percent) for values in (late(esync), late(asgd), early, late(ssgd))]
    return [*plain_cells, difference(late(esync), early)]


def remedy(runs: Results) -> DocumentSection:
    titles = ("2 shards a device", "sorted")
    cells = [[name, *(str(over_seeds(late(runs[f"remedy/{t}/{name}"]), percent)) for t in titles)] for name in REMEDIES]
    at_rest = [str(over_seeds(late(runs[f"accuracy/{title}/SSGD"]), percent)) for title in titles]
    table = Grid(
        f"Accuracy after {EQUAL_S:.0f} s", ("remedy", *titles), [*cells, [f"SSGD after {LONG_S:,.0f} s", *at_rest]]
    )
    rows = [
        ClaimRow(
            f"accuracy, ESync with injection (0.5, 0.5) less SSGD after {LONG_S:,.0f} s, {title}",
            "",
            "",
            difference(late(runs[f"remedy/{title}/{MIXED}"]), late(runs[f"accuracy/{title}/SSGD"])),
            f"Injected samples are {traffic(runs[f'remedy/{title}/{MIXED}'])} of the bytes.",
        )
        for title in titles
    ]
    return findings("What helps slow devices that own labels", REMEDY_TEXT, rows, [table])


def traffic(runs: Runs) -> Measured:
    """Share of the bytes that data injection makes."""
    return over_seeds([divided(run.injected_bytes, run.bytes_total) for run in runs], percent)


MIXED = "injection (0.5, 0.5)"
REMEDY_TEXT = (
    "Ours; the paper has nothing on it. Weights decide how much each delta counts, a limit on local steps how unequal "
    "the deltas are, and injection puts samples of slow devices into the mini-batches of fast ones, which not every "
    "job may. The table says what each brings."
)


def live_notes(runs: Results) -> tuple[str, str]:
    """What the simulator says of the job on real processes."""
    return played_note(runs, "SSGD", ("thin",)), played_note(runs, "ASGD", ("thin", "free"))
