"""RLP: learned synchronization policies against fixed policies, on jobs that nothing was learned from."""

from collections.abc import Mapping, Sequence
from statistics import fmean, geometric_mean

from polyrhythm.policies.rlp.network import Learned, load
from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.rl.learn import TEACHERS
from polyrhythm_experiments.reproduce.figures import percent, plain, seconds, times
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings, reproduction
from polyrhythm_experiments.reproduce.rlp.causes import HIGHER, causes, why
from polyrhythm_experiments.reproduce.rlp.evaluation import PAPER_DQN, Ratio, paper_learned
from polyrhythm_experiments.reproduce.rlp.families import OWN, SETTING, TRAINED, family_of
from polyrhythm_experiments.reproduce.rlp.insight import PAPER_TABLE, insight
from polyrhythm_experiments.reproduce.rlp.results import (
    SSPS,
    best,
    durations,
    gradients,
    idle,
    over,
    over_best,
    shown,
    validations,
)
from polyrhythm_experiments.reproduce.rlp.trials import LEARNED, SPECS, ResultsByKey, figures, run

SOURCE = "*Learning efficient parameter server synchronization policies for distributed SGD* (RLP)."
PAPER_RATIOS = {
    "paper": ("fig. 2(a)", "1.44x"),
    "fashion-28": ("fig. 2(a)", "1.44x"),
    "staleness": ("fig. 2(a)", "1.44x"),
    "hidden-0": ("fig. 2(b)", "1.48x"),
    "hidden-3": ("fig. 2(b)", "1.43x"),
    "stragglers-0": ("fig. 2(c)", "1.02x"),
    "stragglers-1": ("fig. 2(c)", "1.22x"),
    "stragglers-several": ("fig. 2(c)", "1.51x"),
    "hidden-6": ("fig. 3(b)", "1.33x"),
    "fashion": ("fig. 3(b)", "1.22x (CIFAR-10)"),
    "cifar10": ("fig. 3(b)", "1.22x"),
    "combined-2": ("fig. 3(c)", "1.69x"),
    "combined-5": ("fig. 3(c)", "1.19x"),
    "combined-8": ("fig. 3(c)", "1.20x"),
}
"""RLP over the best of BSP, ASP and SSP, as the paper has it."""
PAPER_EACH = {"BSP": "1.56x", "ASP": "1.86x", "the best SSP": "1.44x"}
"""RLP over each baseline in figure 2(a)."""


def page(lab: Lab) -> Document:
    results = run(lab)
    return reproduction(
        title="RLP, reproduced",
        source=SOURCE,
        conditions=conditions(lab, results),
        parts=[
            summary(lab, results),
            *(section(title, names, results) for title, names in figures(lab).items()),
            *causes(results),
            *insight(lab, results),
            training("training", "Training of the policy that ships", load("")),
            training("training-paper", f"Training of {shown(PAPER_DQN)}", paper_learned()),
        ],
        missing=[
            "MNIST: Fashion-MNIST at 28x28 stands for it in the paper's setting, the digits of scikit-learn (8x8) and "
            "Fashion-MNIST at 14x14 for small models.",
            "30 repetitions of each of 100 jobs: one run of each job; the intervals say what that leaves open.",
        ],
    )


def conditions(lab: Lab, results: ResultsByKey) -> dict[str, str]:
    jobs = {family: len(runs["rlp"]) for family, runs in results.items()}
    least = min(jobs.values())
    more = "".join(f", {number} of {family}" for family, number in jobs.items() if number > least)
    return {
        "jobs": f"{least} of each family{more}, the same for every policy; none was learned from",
        "figures": "ratio of mean times to the target accuracy, 95 % interval of a bootstrap over jobs, wins : losses; "
        "a job that does not get there counts as its family's limit",
        "the paper's setting": setting(results),
        "small models": f"the families whose names do not begin with fashion-28 or cifar10: {SMALL_NOTE}",
        "chosen after a look": LOOKED_AT,
        "learning rate": "full rate at every pushed gradient, as in the paper; BSP applies the sum of its gradients",
        "RLP": "the policy that ships with the package, with its fallback",
        shown(PAPER_DQN): DQN_NOTE,
        "K": "seven tenths of the workers for K-sync, K-async and K-group",
        "quick": "yes: its numbers mean nothing" if lab.quick else "no",
    }


DQN_NOTE = "algorithm 2 of the paper, trained in the paper's setting; it acts everywhere, without a fallback"
LOOKED_AT = (
    "the target, rate 0.06, and the single hidden layer at that rate, at some of the held-out jobs; of rates 0.01, "
    "0.03, 0.06 and 0.1 on three of them, RLP equalled ASP at 0.1, where K-group was 2 to 7 times as fast"
)
SMALL_NOTE = "64 units, rates near the edge of stability, where staleness costs gradients; of paper, 0.01"


def setting(results: ResultsByKey) -> str:
    text = (
        "mini-batches of 16 at rate 0.01, layers of 256 units, half of 20,000 images, 28x28 (CIFAR-10: 32x32 in colour)"
    )
    if SETTING not in results:
        return text
    target = family_of(SETTING).target
    bsp, asp = (gradients(results, SETTING, spec) for spec in ("bsp", "asp"))
    return (
        f"{text}; target {100 * target:g} % of Fashion-MNIST, which takes BSP {bsp:,.0f} gradients and ASP {asp:,.0f} "
        "on average; the paper's 88 % of MNIST takes them 279 and 569 in table 1"
    )


COMPARED = (*LEARNED, "k-group:{k}")
"""Policies of the summary."""


def summary(lab: Lab, results: ResultsByKey) -> DocumentSection:
    names = [family for group in figures(lab).values() for family in group]
    heads = (
        "family",
        "best of BSP, ASP, SSP",
        *(f"{shown(spec)} over it" for spec in (*LEARNED, "kbandit", "k-group:{k}")),
        "RLP over ASP",
        "RLP over K-group",
    )
    jobs = Grid("Held-out jobs", heads, [summed(results, name) for name in names])
    return findings("What came out", outcome(results), grids=[by_setting(names, results), jobs])


def outcome(results: ResultsByKey) -> str:
    """The headline of figure 2(a), and what the table counts."""
    text = (
        "The table has geometric means over families, and in how many of them a policy is faster, and slower, with the "
        "whole interval on one side of 1. K-group learns nothing."
    )
    if SETTING not in results:
        return text
    higher = f" At {HIGHER}, with one hidden layer, it is {headline(results, HIGHER)}." if HIGHER in results else ""
    return (
        "On jobs as in training, in the paper's setting, the paper's RLP is 1.44x as fast as the best of BSP, ASP and "
        f"SSP. Here this is {headline(results, SETTING)}.{higher} {text}"
    )


def headline(results: ResultsByKey, family: str) -> str:
    return ", ".join(f"{over_best(results, family, spec).value:.2f}x for {shown(spec)}" for spec in COMPARED)


def by_setting(names: Sequence[str], results: ResultsByKey) -> Grid:
    groups = {
        "the paper's setting": [name for name in names if name in OWN],
        "small models": [name for name in names if name not in OWN],
    }
    heads = (
        "",
        "families",
        *(f"{shown(spec)} over the best of BSP, ASP, SSP" for spec in COMPARED),
        "RLP over K-group",
    )
    rows = [(title, f"{len(group)}", *setting_cells(group, results)) for title, group in groups.items() if group]
    return Grid("By setting", heads, rows)


def setting_cells(group: Sequence[str], results: ResultsByKey) -> list[str]:
    ratios = [[over_best(results, name, spec) for name in group] for spec in COMPARED]
    return [*map(counted, ratios), counted([over(results, name, "k-group:{k}", "rlp") for name in group])]


def counted(ratios: Sequence[Ratio]) -> str:
    """Their geometric mean, and how many are above 1, and below.

    >>> counted([Ratio(2.0, 1.2, 2.8, 8, 0), Ratio(0.5, 0.4, 1.1, 3, 5)])
    '1.00x; faster in 1, slower in 0'
    """
    faster, slower = sum(each.low > 1 for each in ratios), sum(each.high < 1 for each in ratios)
    return f"{geometric_mean(each.value for each in ratios):.2f}x; faster in {faster}, slower in {slower}"


def summed(results: ResultsByKey, family: str) -> list[str]:
    ratios = [over_best(results, family, spec) for spec in (*LEARNED, "kbandit", "k-group:{k}")]
    others = [over(results, family, base, "rlp") for base in ("asp", "k-group:{k}")]
    return [family, shown(best(results, family)), *map(str, (*ratios, *others))]


def section(title: str, names: Sequence[str], results: ResultsByKey) -> DocumentSection:
    rows = [claim(results, family, spec) for family in names for spec in LEARNED]
    if SETTING in names:
        rows += [
            baseline(results, family, name, spec)
            for family in (SETTING, TRAINED)
            for spec in LEARNED
            for name in PAPER_EACH
        ]
    heads = ("family", *map(shown, SPECS))
    spent = {family: durations(results, family) for family in names}
    body = [(family, *(seconds(fmean(times_)) for times_ in spent[family].values())) for family in names]
    ratios = [
        (shown(spec), *(str(over_best(results, family, spec)) for family in names))
        for spec in SPECS
        if spec not in TEACHERS
    ]
    tables = [
        Grid("Mean time to the target", heads, body),
        Grid("Over the best of BSP, ASP and SSP", ("", *names), ratios),
        over_each(names, results),
    ]
    groups = {"": [name for name in names if name in OWN], "-small": [name for name in names if name not in OWN]}
    charts = [mean_times(key(title) + end, title, spent, group) for end, group in groups.items() if group]
    return findings(title, told(names), rows, tables, charts)


def mean_times(name: str, title: str, spent: Mapping[str, dict[str, list[float]]], group: Sequence[str]) -> Chart:
    labels = [shown(spec).replace("RLP (preset paper)", "RLP, paper") for spec in SPECS]
    bars = [Series(family, labels, [fmean(times_) for times_ in spent[family].values()]) for family in group]
    return drawing(name, title, f"Mean times: {', '.join(group)}.", ("", "seconds"), bars, kind="bars")


def key(title: str) -> str:
    """A chart's name from the figure's.

    >>> key("Figure 2(a): jobs as in training")
    'figure-2a'
    """
    return title.partition(":")[0].lower().replace(" ", "-").replace("(", "").replace(")", "")


def over_each(names: Sequence[str], results: ResultsByKey) -> Grid:
    """The learned policies over each of the others."""
    bases = (*TEACHERS, "k-group:{k}")
    rows = [
        (family, shown(spec), *(over(results, family, base, spec).interval for base in bases))
        for family in names
        for spec in LEARNED
    ]
    return Grid("Over each policy", ("family", "", *(f"over {shown(base)}" for base in bases)), rows)


def told(names: Sequence[str]) -> str:
    return " ".join(
        f"{name}: {'/'.join(map(str, family.hidden))} hidden layers of {family.width}, rate {family.learning_rate:g}, "
        f"target {family.target:g}, {'/'.join(map(str, family.workers))} workers, {family.data}, limit "
        f"{family.limit_s:g} s."
        for name in names
        for family in [family_of(name)]
    )


def claim(results: ResultsByKey, family: str, spec: str) -> ClaimRow:
    place, paper = PAPER_RATIOS.get(plain_name(family), ("fig. 3(a)", "not in numbers"))
    what = f"time of the best of BSP, ASP, SSP ({shown(best(results, family))}) by that of {shown(spec)}, {family}"
    ours = str(over_best(results, family, spec))
    return ClaimRow(what, f"section 4, {place}", paper, ours, why(results, family, spec))


def plain_name(family: str) -> str:
    """The figure's part that a family stands for.

    >>> plain_name("fashion-28-hidden-0"), plain_name("cifar10-combined-2"), plain_name("fashion-28")
    ('hidden-0', 'combined-2', 'fashion-28')
    """
    return family.removeprefix("fashion-28-").removeprefix("cifar10-")


def baseline(results: ResultsByKey, family: str, name: str, spec: str) -> ClaimRow:
    """RLP over one of the baselines, SSP being that with the best threshold."""
    base = {"BSP": "bsp", "ASP": "asp"}.get(name) or best(results, family, SSPS)
    what = f"time of {name if name == shown(base) else f'{name}, {shown(base)},'} by that of {shown(spec)}, {family}"
    ours = str(over(results, family, base, spec))
    why_not = "; ".join(f"{shown(each)} {spent_on(results, family, each)}" for each in (base, spec))
    return ClaimRow(what, "section 4, fig. 2(a)", PAPER_EACH[name], ours, f"Gradients and idle time: {why_not}.")


def spent_on(results: ResultsByKey, family: str, spec: str) -> str:
    """Gradients and idle time here, and in table 1 if it has that policy."""
    here = f"{gradients(results, family, spec):,.0f} and {percent(idle(results, family, spec))}"
    return f"{here} (table 1: {' and '.join(PAPER_TABLE[spec])})" if spec in PAPER_TABLE else here


def training(name: str, title: str, learned: Learned) -> DocumentSection:
    facts, points = dict(learned.training), validations(learned)
    curve = Series("validation", [x for x, _ in points], [y for _, y in points])
    rows = [(label, value) for label, value in facts.items() if label != "curve"]
    low, high = learned.conditions.workers
    rows.append(("workers", f"{low} to {high}"))
    rows.append(("parameters", plain(sum(len(row) + 1 for layer in learned.network.layers for row in layer.weights))))
    kept = f"the best network is kept ({times(max((y for _, y in points), default=1.0))})"
    last = f"the last network is kept, as in the paper ({times(points[-1][1])})" if points else ""
    text = (
        "How many times faster than ASP it is on validation jobs, as the geometric mean over its families, by episodes "
        f"after pre-training; {last if facts.get('preset') == 'paper' else kept}."
    )
    plot = drawing(name, title, text, ("episodes", "times faster than ASP"), [curve])
    return findings(title, text, grids=[Grid("The file", ("", ""), rows)], charts=[plot])
