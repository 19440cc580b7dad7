"""RLP: learned synchronization policies against fixed policies, on jobs that nothing was learned from."""

import io
import time
from collections.abc import Sequence
from statistics import fmean

from polyrhythm.core import Cluster, Header, Report, Trace, TraceWriter
from polyrhythm.policies import parse_policy
from polyrhythm.policies.rlp.network import load
from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.report.palette import look
from polyrhythm.report.timeline import KINDS, Timeline
from polyrhythm.report.timeline_figure import kind_shares, timeline_figure
from polyrhythm.rl.episode import BATCH
from polyrhythm.rl.instances import FAMILIES, Instance
from polyrhythm.rl.learn import TEACHERS
from polyrhythm.telemetry import RunResult
from polyrhythm_experiments.reproduce.figures import percent, plain, seconds, times
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings, reproduction
from polyrhythm_experiments.reproduce.rlp.evaluation import Ratio, best_of, compare, instances, measure
from polyrhythm_experiments.reproduce.rlp.trials import SPECS, TRAINED, ResultsByKey, figures, run

SOURCE = "*Learning efficient parameter server synchronization policies for distributed SGD* (RLP)."
NAMES = {"ssp:1": "SSP(2)", "ssp:4": "SSP(5)", "ssp:7": "SSP(8)", "rlp": "RLP", "kbandit": "bandit"}
"""Names in tables; SSP with the paper's s, which blocks one step earlier than ours."""
SHOWN = ("bsp", "asp", "ssp:7", "rlp")
"""Policies of table 1 and figure 4."""
SAMPLES = 60
"""Points of a line of figure 4."""
PAPER_RATIOS = {
    "paper": ("section 4, fig. 2(a)", "1.44x"),
    "staleness": ("section 4, fig. 2(a)", "1.44x"),
    "hidden-0": ("section 4, fig. 2(b)", "1.48x"),
    "hidden-3": ("section 4, fig. 2(b)", "1.43x"),
    "stragglers-0": ("section 4, fig. 2(c)", "1.02x"),
    "stragglers-1": ("section 4, fig. 2(c)", "1.22x"),
    "stragglers-several": ("section 4, fig. 2(c)", "1.51x"),
    "hidden-6": ("section 4, fig. 3(b)", "1.33x"),
    "fashion": ("section 4, fig. 3(b)", "1.22x (CIFAR-10)"),
    "combined": ("section 4, fig. 3(c)", "1.69x, 1.19x, 1.20x (2, 5, 8 workers)"),
}
"""RLP over the best of BSP, ASP and SSP, as the paper has it."""


def page(lab: Lab) -> Document:
    results = run(lab)
    return reproduction(
        title="RLP, reproduced",
        source=SOURCE,
        conditions=conditions(lab, results),
        parts=[
            summary(results),
            *(section(title, families, results) for title, families in figures(lab).items()),
            insight(results),
            training(),
        ],
        missing=[
            "MNIST and CIFAR-10: digits of scikit-learn (8x8) and Fashion-MNIST at 14x14 stand for them.",
            "256 units a hidden layer and 30 repetitions of each of 100 jobs: 64 units, one run of each job; the "
            "intervals say what that leaves open.",
            "The paper's own DQN: benchmarks/rlp.py trains it to the letter and reports what it reaches.",
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
        "learning rate": "full rate at every pushed gradient, as in the paper; BSP applies the sum of its gradients",
        "RLP": "the policy that ships with the package, with its fallback",
        "K": "seven tenths of the workers for K-sync, K-async and K-group",
        "quick": "yes: its numbers mean nothing" if lab.quick else "no",
    }


def durations(results: ResultsByKey, family: str) -> dict[str, list[float]]:
    return {spec: [run.duration_s for run in runs] for spec, runs in results[family].items()}


def against_best(results: ResultsByKey, family: str, spec: str = "rlp") -> tuple[str, Ratio]:
    spent = durations(results, family)
    best = best_of(spent)
    return best, compare(spent[best], spent[spec])


def shown(spec: str) -> str:
    return NAMES.get(spec, spec.replace(":{k}", "").upper() if spec in TEACHERS else spec.replace(":{k}", ""))


def summary(results: ResultsByKey) -> DocumentSection:
    rows = []
    for family in results:
        best, ratio = against_best(results, family)
        spent = durations(results, family)
        others = [str(compare(spent[best], spent[spec])) for spec in ("kbandit", "k-group:{k}")]
        fallback = str(compare(spent["asp"], spent["rlp"]))
        rows.append((family, shown(best), str(ratio), *others, fallback))
    heads = ("family", "best of BSP, ASP, SSP", "RLP over it", "bandit over it", "K-group over it", "RLP over ASP")
    text = (
        "RLP's fallback is ASP. Where the rate is low (the family paper) staleness does not hurt, and nothing can beat "
        "ASP; K-group is the simple policy to beat elsewhere, and where its column is the larger one, learning has not."
    )
    return findings("What came out", text, grids=[Grid("Held-out jobs", heads, rows)])


def section(title: str, families: Sequence[str], results: ResultsByKey) -> DocumentSection:
    rows = [claim(results, family) for family in families]
    heads = ("family", *map(shown, SPECS))
    body = [
        (family, *(seconds(fmean(times_)) for times_ in durations(results, family).values())) for family in families
    ]
    ratios = [
        (shown(spec), *(str(against_best(results, family, spec)[1]) for family in families))
        for spec in SPECS
        if spec not in TEACHERS
    ]
    bars = [
        Series(family, [shown(spec) for spec in SPECS], [fmean(each) for each in durations(results, family).values()])
        for family in families
    ]
    tables = [
        Grid("Mean time to the target", heads, body),
        Grid("Over the best of BSP, ASP and SSP", ("", *families), ratios),
        *(by_workers(results, family) for family in families if len(FAMILIES[family].workers) > 1),
    ]
    key = "-".join(families)
    chart = drawing(key, title, "Mean times.", ("", "seconds"), bars, kind="bars")
    return findings(title, told(families), rows, tables, [chart])


def by_workers(results: ResultsByKey, family: str) -> Grid:
    """A family whose jobs differ in their number of workers, each number apart."""
    spent, rows = durations(results, family), []
    numbers = [job.workers for job in instances(family, len(spent["rlp"]))]
    for workers in sorted(set(numbers)):
        at = [place for place, number in enumerate(numbers) if number == workers]
        apart = {spec: [times_[place] for place in at] for spec, times_ in spent.items()}
        best = best_of(apart)
        cells = (seconds(fmean(apart[best])), seconds(fmean(apart["rlp"])), str(compare(apart[best], apart["rlp"])))
        rows.append((f"{workers}", f"{len(at)}", shown(best), *cells))
    return Grid(
        f"{family}, by workers", ("workers", "jobs", "best of BSP, ASP, SSP", "its time", "RLP", "RLP over it"), rows
    )


def told(families: Sequence[str]) -> str:
    return " ".join(
        f"{name}: {'/'.join(map(str, family.hidden))} hidden layers, rate {family.learning_rate:g}, target "
        f"{family.target:g}, {'/'.join(map(str, family.workers))} workers, {family.data}, limit {family.limit_s:g} s."
        for name in families
        for family in [FAMILIES[name]]
    )


def claim(results: ResultsByKey, family: str) -> ClaimRow:
    place, paper = PAPER_RATIOS.get(family, ("section 4, fig. 3(a)", "not in numbers"))
    best, ratio = against_best(results, family)
    why = "At this rate staleness hardly hurts, so ASP cannot be beaten." if family == "paper" else WHY
    return ClaimRow(
        f"time of the best of BSP, ASP, SSP ({shown(best)}) by RLP's, {family}", place, paper, str(ratio), why
    )


WHY = (
    "Another regime, stated above. The paper has MNIST, mini-batches of 16 at rate 0.01 and a target of 88 %, and lets "
    "each worker sleep with probability 0.3 for a Gaussian time; its table 1 has the mean steps of one such job."
)


def insight(results: ResultsByKey) -> DocumentSection:
    """Table 1 and figure 4: one job with several stragglers, in which RLP does what ASP does not."""
    instance = typical(results)
    traces = {spec: traced(instance, spec) for spec in SHOWN}
    heads = ("", *(f"W{worker}" for worker in range(instance.workers)), "gradients", "idle", "time")
    rows = [(shown(spec), *cells(result)) for spec, (result, _) in traces.items()]
    rows.append(("mean step", *(f"{a + b:.3g} s" for a, b in steps(instance)), "", "", ""))
    decision_s, step_s = cost(traces["rlp"][1])
    inference = ClaimRow(
        "inference of RLP in a step's time",
        "table 1",
        "1.4 %",
        f"{100 * decision_s / step_s:.4f} % ({1e6 * decision_s:.0f} us of {step_s:.3g} s)",
        "Steps last seconds of virtual time. benchmarks/rlp.py measures it on real workers.",
    )
    lines = [busy(shown(spec), trace) for spec, (_, trace) in traces.items()]
    figure = drawing("running", "Workers that compute", "Over the job's time.", ("seconds", "workers"), lines)
    text = (
        f"Job {instance.seed} of the family {instance.family.name}, of those in which RLP leaves ASP the one with the "
        f"most stragglers: {instance.stragglers}."
    )
    charts = [figure, who_waits([trace for _, trace in traces.values()])]
    return findings("Table 1 and figure 4: one job", text, [inference], [Grid("Steps", heads, rows)], charts)


def typical(results: ResultsByKey) -> Instance:
    """The job with the most stragglers among those of a family that end at another time under RLP than under ASP."""
    family = TRAINED if TRAINED in results else next(iter(results))
    spent = durations(results, family)
    jobs = instances(family, len(spent["rlp"]))
    acts = [job for job, ours, theirs in zip(jobs, spent["rlp"], spent["asp"], strict=True) if ours != theirs]
    return max(acts or jobs, key=lambda each: each.stragglers)


def who_waits(traces: Sequence[Trace]) -> Chart:
    """Figure 4, a row a worker: until all but one of the policies are through."""
    whole = [Timeline.of(trace) for trace in traces]
    window_s = sorted(timeline.end_s for timeline in whole)[-2]
    timelines = [timeline.until(window_s) for timeline in whole]
    colours, names = [look(at).colour for at in range(len(traces))], [shown(trace.header.policy) for trace in traces]
    rows = [(name, *map(percent, kind_shares(each).values())) for name, each in zip(names, timelines, strict=True)]
    text = (
        f"The first {window_s:.0f} s, a row a worker: a thick bar while it computes, a thin gray line while it waits."
    )
    figure = timeline_figure(timelines, window_s, colours, names)
    return Chart("timelines", "Who ran and who waited", text, figure, ("", *KINDS.values()), rows, wide=True)


def steps(instance: Instance) -> list[tuple[float, float]]:
    """Mean computation and sleep of each worker."""
    return list(zip(instance.base_s, instance.sleep_s, strict=True))


def traced(instance: Instance, spec: str) -> tuple[RunResult, Trace]:
    stream = io.StringIO()
    writer = TraceWriter(stream, Header(spec, Cluster(instance.workers, BATCH), {}))
    result = measure(instance, spec, writer=writer)
    stream.seek(0)
    return result, Trace.parse(stream)


def cells(result: RunResult) -> list[str]:
    counts = [str(count) for _, count in sorted(result.steps_by_worker.items())]
    return [*counts, str(result.gradients_applied), f"{100 * result.idle_fraction:.1f} %", seconds(result.duration_s)]


def cost(trace: Trace) -> tuple[float, float]:
    """Processor time of a decision here, and of a step in the run; both means, in seconds."""
    policy = parse_policy(trace.header.policy)
    state, reports = policy.init(trace.header.cluster), []
    started = time.process_time()
    for event, _ in trace.entries:
        state, _ = policy.decide(state, event)
        reports += [event] if isinstance(event, Report) else []
    return (time.process_time() - started) / len(reports), fmean(report.step_s for report in reports)


def busy(name: str, trace: Trace) -> Series:
    timeline = Timeline.of(trace)
    moments = [timeline.end_s * (at + 0.5) / SAMPLES for at in range(SAMPLES)]
    spans = [span for span in timeline.spans if span.kind == "compute"]
    counts = [sum(span.start_s <= moment < span.end_s for span in spans) for moment in moments]
    return Series(name, moments, [float(count) for count in counts])


def training() -> DocumentSection:
    learned = load("")
    facts = dict(learned.training)
    points = [tuple(map(float, point.split(":"))) for point in facts.get("curve", "").split()]
    curve = Series("validation", [x for x, _ in points], [y for _, y in points])
    rows = [(key, value) for key, value in facts.items() if key != "curve"]
    low, high = learned.conditions.workers
    rows.append(("workers", f"{low} to {high}; outside of that ASP takes over"))
    rows.append(("parameters", plain(sum(len(row) + 1 for layer in learned.network.layers for row in layer.weights))))
    best = max((y for _, y in points), default=1.0)
    text = (
        "How many times faster than ASP it is on validation jobs, as the geometric mean over its families, by episodes "
        f"after pre-training; the best network is kept ({times(best)})."
    )
    plot = drawing(
        "training", "Training of the policy that ships", text, ("episodes", "times faster than ASP"), [curve]
    )
    return findings("Training", text, grids=[Grid("The file", ("", ""), rows)], charts=[plot])
