"""Who arrives when: each worker's time to the exchange, and what it waits there for the others."""

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from polyrhythm.report.figures import Chart, RunsByPolicy, listing
from polyrhythm.report.palette import Look, faded
from polyrhythm.telemetry.numbers import NOTHING
from polyrhythm.telemetry.result import RunResult
from polyrhythm.telemetry.stragglers import Lateness

MOST_WORKERS = 32
"""A figure of more workers than this shows those that are latest."""

PARTS = (("compute", "compute_s", 1.0, ""), ("transfer", "transfer_s", 0.6, "/"), ("wait", "wait_s", 0.25, "."))
"""What a step consists of: name, field, strength of the colour, hatching."""


def arrivals_chart(runs: RunsByPolicy, looks: Mapping[str, Look]) -> Chart | None:
    """Seconds of a mean step of each worker, of each policy's first run; None if nothing was measured."""
    first = {policy: group[0] for policy, group in runs.items() if group[0].arrivals}
    if not first:
        return None
    figure = go.Figure(layout={"barmode": "stack"})
    bars = [(policy, worker, arrival) for policy, run in first.items() for worker, arrival in latest(run)]
    for name, field, strength, pattern in PARTS:
        figure.add_bar(
            y=[[policy for policy, _, _ in bars], [f"worker {worker}" for _, worker, _ in bars]],
            x=[getattr(arrival, field) for _, _, arrival in bars],
            orientation="h",
            name=name,
            marker={
                "color": [faded(looks[policy].colour, strength) for policy, _, _ in bars],
                "pattern": {"shape": pattern},
            },
            showlegend=False,
        )
    figure.update_layout(xaxis={"title": "seconds of a step: compute, then (hatched) transfer, then (dotted) wait"})
    figure.update_yaxes(autorange="reversed")
    return Chart(
        key="arrivals",
        title="Who arrives when",
        description="Bar chart of a mean step of each worker in the first run of each policy: what it computes and "
        "transfers until the exchange, and what it waits there. "
        + listing({policy: verdict(run) for policy, run in first.items()}),
        figure=figure,
        headings=("policy", "worker", "compute", "transfer", "wait", "late", "kind"),
        rows=[[policy, *row(worker, arrival)] for policy, run in first.items() for worker, arrival in latest(run)],
    )


def latest(run: RunResult) -> Sequence[tuple[int, Lateness]]:
    """Workers in order of their numbers; of very many those that take longest to the exchange."""
    slowest = sorted(run.arrivals.items(), key=lambda item: -item[1].compute_s - item[1].transfer_s)
    return sorted(slowest[:MOST_WORKERS])


def row(worker: int, arrival: Lateness) -> list[str]:
    times = (f"{seconds:.4g} s" for seconds in (arrival.compute_s, arrival.transfer_s, arrival.wait_s))
    late = f"{arrival.spells}x, {arrival.late_share:.0%} of the time" if arrival.spells else NOTHING
    return [str(worker), *times, late, arrival.kind or NOTHING]


def verdict(run: RunResult) -> str:
    late = {worker: arrival.kind for worker, arrival in run.arrivals.items() if arrival.kind}
    if not late:
        return "has no straggler"
    return "has " + ", ".join(f"worker {worker} ({kind})" for worker, kind in sorted(late.items()))
