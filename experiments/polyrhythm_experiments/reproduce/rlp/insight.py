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
from polyrhythm.rl.instances import Instance
from polyrhythm.telemetry import RunResult
from polyrhythm_experiments.reproduce.figures import percent, seconds
from polyrhythm_experiments.reproduce.lab import Lab
from polyrhythm_experiments.reproduce.page import ClaimRow, Series, drawing, findings
from polyrhythm_experiments.reproduce.rlp.evaluation import PAPER_DQN, instances, measure, policy_for
from polyrhythm_experiments.reproduce.rlp.families import TABLE, TRAINED, table_job
from polyrhythm_experiments.reproduce.rlp.results import durations, gradients, idle, shown
from polyrhythm_experiments.reproduce.rlp.trials import LEARNED, ResultsByKey

SHOWN = ("bsp", "asp", "ssp:7", *LEARNED)
"""Policies of table 1 and figure 4."""
SAMPLES = 60
"""Points of a line of figure 4."""
PAPER_TABLE = {
    "bsp": ("279", "54.2 %"),
    "asp": ("569", "0 %"),
    "ssp:7": ("252", "43.5 %"),
    "rlp": ("380", "8.1 %"),
    PAPER_DQN: ("380", "8.1 %"),
}
"""Gradients and idle time in table 1."""
Traced = dict[str, tuple[RunResult, Trace]]
"""A job's result and trace under each policy."""


def insight(lab: Lab, results: ResultsByKey) -> list[DocumentSection]:
    """A job in which the learned policies leave ASP; with the workers of table 1 also at the paper's rate."""
    job = typical(results)
    runs = traced_all(lab, job)
    text = f"Job {job.seed} of {job.family.name}, {job.stragglers} stragglers. {CHOICE}"
    acting = worker_by_worker("acting", "Table 1 and figure 4: a job in which the policies act", text, job, runs)
    if job.family.name not in TABLE:
        return [acting]
    same = table_job(TABLE[AT_PAPER_RATE], job.seed)
    text = f"Job {job.seed} of {AT_PAPER_RATE}; the next part has it at a higher rate."
    plain = worker_by_worker("paper", "Table 1 and figure 4: the paper's rate", text, same, traced_all(lab, same))
    return [table_one(results, runs), plain, acting]


CHOICE = "It is the first of those with the most stragglers in which both learned policies leave ASP, if there is one."
AT_PAPER_RATE, AT_HIGHER_RATE = TABLE


def table_one(results: ResultsByKey, runs: Traced) -> DocumentSection:
    rows = [row for spec in PAPER_TABLE for row in table_claims(results, spec)]
    jobs = len(results[AT_PAPER_RATE]["rlp"])
    text = (
        f"Means over {jobs} jobs whose workers have the mean steps of table 1, one hidden layer of 256 units, "
        "Fashion-MNIST at 28x28, target 0.7."
    )
    return findings(
        "Table 1: gradients and idle time", text, [*rows, *(inference(spec, runs[spec][1]) for spec in LEARNED)]
    )


def table_claims(results: ResultsByKey, spec: str) -> list[ClaimRow]:
    """Gradients and idle time at the paper's rate, and at the higher one as the reason."""
    counts = [f"{gradients(results, family, spec):,.0f}" for family in TABLE]
    waits = [percent(idle(results, family, spec)) for family in TABLE]
    count, waited = PAPER_TABLE[spec]
    changed = "At rate 0.06, all else equal:"
    return [
        ClaimRow(f"gradients, {shown(spec)}", "table 1", count, counts[0], f"{changed} {counts[1]}."),
        ClaimRow(f"idle time, {shown(spec)}", "table 1", waited, waits[0], f"{changed} {waits[1]}."),
    ]


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
    family = next((name for name in (AT_HIGHER_RATE, TRAINED) if name in results), next(iter(results)))
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
