"""RLP's table 1 and figure 4: jobs worker by worker."""

import io
import time
from collections.abc import Sequence
from statistics import fmean

from polyrhythm.core import Cluster, Header, Report, Trace, TraceWriter
from polyrhythm.report.document import DocumentSection, Grid
from polyrhythm.report.figures import Chart
from polyrhythm.report.palette import look
from polyrhythm.report.timeline import KINDS, Timeline
from polyrhythm.report.timeline_figure import kind_shares, timeline_figure
from polyrhythm.rl.episode import BATCH
from polyrhythm.rl.instances import FAMILIES, Instance
from polyrhythm.telemetry import RunResult
from polyrhythm_experiments.reproduce.figures import percent, seconds
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings
from polyrhythm_experiments.reproduce.rlp.evaluation import PAPER_DQN, instances, measure, policy_for
from polyrhythm_experiments.reproduce.rlp.families import TRAINED, like, table_job
from polyrhythm_experiments.reproduce.rlp.results import durations, shown
from polyrhythm_experiments.reproduce.rlp.trials import LEARNED, ResultsByKey

SHOWN = ("bsp", "asp", "ssp:7", *LEARNED)
"""Policies of table 1 and figure 4."""
SAMPLES = 60
"""Points of a line of figure 4."""
TABLE = {"0.01": like("table 1", hidden=(2,)), "0.06": like("table 1, rate 0.06", hidden=(2,), learning_rate=0.06)}
"""The family of table 1's job by rate; the paper does not say how many hidden layers it has."""
PAPER_TABLE = {
    "bsp": ("279", "54.2 %"),
    "asp": ("569", "0 %"),
    "ssp:7": ("252", "43.5 %"),
    "rlp": ("380", "8.1 %"),
    PAPER_DQN: ("380", "8.1 %"),
}
"""Gradients and idle time in table 1."""
SEED = 1_000_000

Traced = dict[str, tuple[RunResult, Trace]]
"""A job's result and trace under each policy."""


def insight(lab: Lab, results: ResultsByKey) -> list[DocumentSection]:
    """The job of table 1 at the paper's rate and at a higher one, and one in which the learned policies leave ASP."""
    job = typical(results)
    text = (
        f"Job {job.seed} of the family {job.family.name}: of those in which the learned policies leave ASP, the one "
        f"with the most stragglers, {job.stragglers}."
    )
    acting = worker_by_worker("acting", "A job in which the policies act", text, job, traced_all(lab, job))
    return [acting] if lab.quick else [*table_one(lab), acting]


def table_one(lab: Lab) -> list[DocumentSection]:
    jobs = {rate: table_job(family, SEED) for rate, family in TABLE.items()}
    runs = {rate: traced_all(lab, job) for rate, job in jobs.items()}
    first, second = (
        worker_by_worker(f"table-{at}", f"Table 1 and figure 4, rate {rate}", TABLE_TEXT, jobs[rate], runs[rate])
        for at, rate in enumerate(TABLE, start=1)
    )
    grid, *_ = findings("", rows=table_claims(*runs.values())).grids
    return [DocumentSection(first.title, first.text, [grid, *first.grids], first.charts), second]


TABLE_TEXT = (
    "Workers whose mean steps are those of table 1, two hidden layers of 256 units, Fashion-MNIST at 28x28, target 0.7."
)


def table_claims(runs: Traced, higher: Traced) -> list[ClaimRow]:
    rows = []
    for spec, (count, idle) in PAPER_TABLE.items():
        ours, theirs = runs[spec][0], higher[spec][0]
        at = "At rate 0.06, all else equal:"
        counted = f"{ours.gradients_applied}", f"{at} {theirs.gradients_applied}."
        rows.append(ClaimRow(f"gradients, {shown(spec)}", "table 1", count, *counted))
        waited = percent(ours.idle_fraction), f"{at} {percent(theirs.idle_fraction)}."
        rows.append(ClaimRow(f"idle time, {shown(spec)}", "table 1", idle, *waited))
    return [*rows, *(inference(spec, runs[spec][1]) for spec in LEARNED)]


def inference(spec: str, trace: Trace) -> ClaimRow:
    decision_s, step_s = cost(trace)
    ours = f"{100 * decision_s / step_s:.4f} %"
    why = f"The step: a decision takes {1e6 * decision_s:.0f} us, and a step {step_s:.3g} s of virtual time."
    return ClaimRow(f"inference in a step's time, {shown(spec)}", "table 1", "1.4 %", ours, why)


def worker_by_worker(key: str, title: str, text: str, job: Instance, traces: Traced) -> DocumentSection:
    heads = ("", *(f"W{worker}" for worker in range(job.workers)), "gradients", "idle", "time")
    rows = [(shown(spec), *cells(result)) for spec, (result, _) in traces.items()]
    rows.append(("mean step", *(f"{a + b:.3g} s" for a, b in steps(job)), "", "", ""))
    lines = [busy(shown(spec), trace) for spec, (_, trace) in traces.items()]
    figure = drawing(f"running-{key}", "Workers that compute", "Over the job's time.", ("seconds", "workers"), lines)
    charts = [figure, who_waits(key, [trace for _, trace in traces.values()])]
    return findings(title, text, grids=[Grid("Steps", heads, rows)], charts=charts)


def typical(results: ResultsByKey) -> Instance:
    """The job with the most stragglers among those that end at another time under the learned policies than under ASP.

    If all of them leave ASP in no job, those count that RLP leaves it in.
    """
    family = TRAINED if TRAINED in results else next(name for name in results if name in FAMILIES)
    spent = durations(results, family)
    jobs = instances(family, len(spent["rlp"]))
    one = departing(spent, ["rlp"])
    acts = departing(spent, [spec for spec in LEARNED if spec in spent]) or one or list(range(len(jobs)))
    return max((jobs[place] for place in acts), key=lambda each: each.stragglers)


def departing(spent: dict[str, list[float]], specs: Sequence[str]) -> list[int]:
    """Places of jobs that each of these policies ends at another time than ASP."""
    return [at for at, asp_s in enumerate(spent["asp"]) if all(spent[spec][at] != asp_s for spec in specs)]


def who_waits(key: str, traces: Sequence[Trace]) -> Chart:
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
    return Chart(f"timelines-{key}", "Who ran and who waited", text, figure, ("", *KINDS.values()), rows, wide=True)


def steps(instance: Instance) -> list[tuple[float, float]]:
    """Mean computation and sleep of each worker."""
    return list(zip(instance.base_s, instance.sleep_s, strict=True))


def traced_all(lab: Lab, job: Instance) -> Traced:
    return {spec: traced(job, spec, lab.data) for spec in SHOWN}


def traced(instance: Instance, spec: str, folder: str | None) -> tuple[RunResult, Trace]:
    stream = io.StringIO()
    writer = TraceWriter(stream, Header(spec, Cluster(instance.workers, BATCH), {}))
    result = measure(instance, spec, folder, writer)
    stream.seek(0)
    return result, Trace.parse(stream)


def cells(result: RunResult) -> list[str]:
    counts = [str(count) for _, count in sorted(result.steps_by_worker.items())]
    return [*counts, str(result.gradients_applied), f"{100 * result.idle_fraction:.1f} %", seconds(result.duration_s)]


def cost(trace: Trace) -> tuple[float, float]:
    """Processor time of a decision here, and of a step in the run; both means, in seconds."""
    policy = policy_for(trace.header.policy, trace.header.cluster.workers)
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
