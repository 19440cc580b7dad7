"""ESync (Li, Zhou and Yu): two slow and four fast devices that meet when the slowest has done one step."""

from collections.abc import Sequence

from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.telemetry.result import EvalPoint, RunResult
from polyrhythm_experiments.reproduce.curves import accuracy_plot, reached_s
from polyrhythm_experiments.reproduce.esync_trials import (
    EQUAL_S,
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
    trials,
)
from polyrhythm_experiments.reproduce.figures import (
    Measured,
    difference,
    divided,
    over_seeds,
    percent,
    plain,
    ratio,
    seconds,
)
from polyrhythm_experiments.reproduce.lab import Lab, Results, Runs
from polyrhythm_experiments.reproduce.live_esync import live_section, lives
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings, reproduction

SOURCE = (
    "Li, Zhou, Yu: *ESync: An Efficient Synchronous Parallel Algorithm for Distributed ML in Heterogeneous Clusters*."
)
MIDDLE = RATES[1]
LATE = 5
"""Evaluations whose mean is the accuracy of a run that swings."""


def page(lab: Lab) -> Document:
    runs = lab.run(trials(lab))
    return reproduction(
        title="ESync, reproduced",
        source=SOURCE,
        conditions=conditions(lab),
        parts=[
            system(runs),
            speed(runs),
            accuracy(runs),
            skew(runs),
            remedy(runs),
            *([] if lab.quick else [live_section(lives(lab))]),
        ],
        missing=[
            "AlexNet, Inception, ResNet and MobileNet (table 1): a run of one of them takes hours on two cores; an MLP "
            "and a small CNN stand for them.",
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


def blocked_s(runs: Runs) -> list[float | None]:
    """Time a round that a fast device waits for the others."""
    fast = range(2, 6)
    return [sum(run.idle_fraction_by_worker[w] for w in fast) / 4 * run.duration_s / run.updates for run in runs]


def system(runs: Results) -> DocumentSection:
    """Figures 4 and 5: throughput, traffic, computing time."""
    at = {name: runs[f"system/{name}"] for name in POLICIES}
    speeds = {name: of(group, "samples_per_s") for name, group in at.items()}
    rows = [
        ClaimRow(
            "samples/s, ESync over SSGD", "section 5, fig. 4", "33x", ratio(speeds["ESync"], speeds["SSGD"]), WHY_MORE
        ),
        *(
            ClaimRow(
                f"the same, messages take 20 ms, {name.removeprefix('ESync, ')}",
                "section 4.2",
                "33x",
                gain(runs, 0.02, name),
                why,
            )
            for name, why in (("ESync, blocking", WHY_QUERY), ("ESync, non-blocking", ""))
        ),
        ClaimRow(
            "samples/s, ESync over ASGD", "section 5, fig. 4", "3x", ratio(speeds["ESync"], speeds["ASGD"]), WHY_LINK
        ),
        ClaimRow(
            "bytes/s, ASGD over ESync",
            "section 5, fig. 4",
            "15x",
            ratio(bytes_per_s(at["ASGD"]), bytes_per_s(at["ESync"])),
            WHY_LINK,
        ),
        ClaimRow(
            "wait of a fast device a round",
            "section 4.1",
            "below its step of 0.03 s",
            over_seeds(blocked_s(at["ESync"]), seconds),
            "The promise holds up to the jitter of the slow device: 3 % of 3.5 s is 0.1 s.",
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
    tables = [table, by_latency(runs)]
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
        gains = [gain(runs, latency_s, name) for name in MODES if name != "SSGD"]
        rows.append([f"{2000 * latency_s:g} ms", *map(str, speeds), *map(str, gains)])
    headings = ("round trip", *(f"{name}, samples/s" for name in MODES), "blocking over SSGD", "non-blocking over SSGD")
    return Grid("By the round trip of a message without a body", headings, rows)


WHY_MORE = (
    "As many steps as fit: 3.5 s / 0.03 s, less the transfer. The paper's devices made fewer; the table by round trip "
    "shows which query would explain that."
)
WHY_QUERY = "A query of 40 ms there and back makes a step of 30 ms one of 70 ms; the paper does not state its latency."
WHY_LINK = "ASGD is bound by the server's link, and how fast that is, is our assumption."
CAPTION_5 = "Share of their time in which devices compute (the paper's figure 5)."


def system_cells(runs: Runs) -> list[Measured]:
    megabytes = [each / 1e6 if each is not None else None for each in bytes_per_s(runs)]
    shares = [over_seeds(computing(runs, workers), percent) for workers in (range(2), range(2, 6))]
    return [over_seeds(of(runs, "samples_per_s"), plain), over_seeds(megabytes, plain), *shares]


def speed(runs: Results) -> DocumentSection:
    """Table 1 and the text of section 5: time to 80 %."""
    rates = [rate for rate in RATES if f"speed/{rate:g}/ESync" in runs]
    cells = [[f"{rate:g}", *map(str, speed_cells(runs, f"speed/{rate:g}"))] for rate in rates]
    rows = [
        ClaimRow(
            f"time to 80 %, SSGD over ESync, rate {rate:g}",
            "section 5, table 1",
            "7x (2x to 27x by model)",
            times_to(runs, f"speed/{rate:g}", "SSGD"),
            WHY_FAST if rate < 0.1 else WHY_ROUND,
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
                WHY_ROUND,
            )
        )
    for name, said, why in (
        ("ASGD", "about 1x", WHY_ASGD),
        ("SSP(3)", "", "The paper has no figure; it expects SSGD's."),
    ):
        what = f"time to 80 %, {name} over ESync, rate {MIDDLE:g}"
        rows.append(ClaimRow(what, "section 5, fig. 3", said, times_to(runs, f"speed/{MIDDLE:g}", name), why))
    table = Grid("Time to 80 %", ("rate", *POLICIES), cells)
    return findings(
        "Training speed, i.i.d.", f"Virtual time until the test accuracy is {percent(TARGET)}.", rows, [table]
    )


WHY_FAST = (
    "A round of ESync moves the model by some 115 local steps where SSGD makes one, and our model can use them all. "
    "The paper's networks could not, or its rounds cost more than its steps."
)
WHY_ROUND = (
    "At this rate ESync needs one or two rounds, and a round cannot be shorter than a step of the slowest device."
)

WHY_ASGD = (
    "ASGD's first rounds need no barrier: 16 ms on the server's link a gradient, and staleness of 5 hardly hurts here."
)


def times_to(runs: Results, place: str, name: str) -> Measured:
    return ratio(of(runs[f"{place}/{name}"], "time_to_target_s"), of(runs[f"{place}/ESync"], "time_to_target_s"))


def speed_cells(runs: Results, place: str) -> list[Measured]:
    return [over_seeds(of(runs[f"{place}/{name}"], "time_to_target_s"), seconds) for name in POLICIES]


def late(runs: Runs) -> list[float | None]:
    """Accuracy of each seed: the mean of its last evaluations."""
    return [mean_of(run.curve[-LATE:]) for run in runs]


def at_time(runs: Runs, time_s: float) -> list[float | None]:
    """Accuracy of each seed at a time: the mean of the last evaluations before it."""
    return [mean_of([point for point in run.curve if point.time_s <= time_s][-LATE:]) for run in runs]


def mean_of(points: Sequence[EvalPoint]) -> float | None:
    return sum(point.accuracy for point in points) / len(points) if points else None


def accuracy(runs: Results) -> DocumentSection:
    """Figure 3 and table 1: accuracy against one device that trains alone."""
    esync, alone = runs["accuracy/i.i.d./ESync"], runs["accuracy/standalone"]
    rows = [
        ClaimRow(
            f"accuracy, ESync after {EQUAL_S:.0f} s less standalone",
            "table 1",
            "-0.2 to +0.5 pt",
            difference(late(esync), late(alone)),
            "After 33 rounds, and still rising; the one device has made 10,000 steps of 64.",
        ),
        ClaimRow(
            "accuracy, ESync",
            "table 1",
            "90.3 to 93.7 %",
            over_seeds(late(esync), percent),
            "Theirs are deep networks.",
        ),
        ClaimRow("accuracy, standalone", "table 1", "90.2 to 93.2 %", over_seeds(late(alone), percent), "As above."),
    ]
    return findings("Accuracy, i.i.d.", "On all 10,000 test images.", rows, charts=[curves(runs, "i.i.d.")])


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
            why,
        )
        for title, why in (("Dirichlet(0.3)", WHY_MILD), ("2 shards a device", WHY_OWN), ("sorted", WHY_OWN))
    ]
    tables = [Grid(f"Accuracy after {EQUAL_S:.0f} s", headings, cells), skewed_times(runs)]
    plots = [curves(runs, title) for title in ("Dirichlet(0.3)", "sorted")]
    text = (
        "The paper does not say how its data differ. The harder the skew, the less its claim holds. Accuracies are "
        f"means of the last {LATE} evaluations, since some runs swing; SSGD still rises after {LONG_S:,.0f} s."
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
            WHY_APART,
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


WHY_APART = (
    "A round's local steps pull each replica towards its own data, so they are worth less than with equal data. ESync "
    "is evaluated once in 8 s here."
)
WHY_MILD = "Every label is with several devices, fast ones among them."
WHY_OWN = (
    "Slow devices own labels, and make one local step where a fast one makes 115: in the mean of Eq. 7 what they have "
    "learned weighs a hundredth."
)


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
    "the deltas are, and injection puts samples of slow devices into the mini-batches of fast ones. Only the last one "
    "brings the lost labels back: weights make up for the steps of slow devices, but not for what the others have "
    "unlearned meanwhile, and swing; a limit costs the steps that made ESync fast. Injection sends samples to other "
    "devices, which not every job may."
)
