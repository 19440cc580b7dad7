"""A diagnosis as one HTML page and as JSON."""

from typing import Any

from polyrhythm import __version__
from polyrhythm.report.document import Document, DocumentSection, Grid, render_document
from polyrhythm.report.figures import Chart
from polyrhythm.telemetry.numbers import number
from polyrhythm_experiments.diagnose.charts import list_charts
from polyrhythm_experiments.diagnose.study import Diagnosis, Seen

WORDS = {
    "Gradients over the epochs": "SelSync, figure 3: gradients shrink and gather at zero as the training goes on.",
    "Relative gradient change beside accuracy": "SelSync, figure 5: the signal that decides whether to synchronise.",
    "Curvature beside gradient variance": "SelSync, figure 4: the cheap variance is to follow the costly eigenvalue.",
    "Weights under BSP, PA and GA": "SelSync, figure 11: averaging parameters is to stay close to BSP.",
}


def page(diagnosis: Diagnosis, command: str) -> str:
    training = diagnosis.scenario.training
    assert training is not None
    facts = {
        "scenario": f"{diagnosis.scenario.name}, {diagnosis.scenario.workers} workers",
        "training": f"{training.task}, {training.model_name}, rate {training.learning_rate:g} "
        f"({training.lr_convention}), momentum {training.momentum:g}, mini-batches of {training.batch_size}",
        "seed": str(diagnosis.seed),
        "SelSync": f"delta {diagnosis.delta:g}",
    }
    runs = DocumentSection(
        "Runs", grids=[Grid("", HEADINGS, [cells(name, seen) for name, seen in diagnosis.runs.items()])]
    )
    parts = [DocumentSection(title, WORDS[title], charts=charts) for title, charts in list_charts(diagnosis).items()]
    return render_document(Document(f"Inside {training.task}", command, facts, [runs, *parts]))


HEADINGS = ("run", "policy", "final accuracy", "final loss", "updates", "steps")


def cells(name: str, seen: Seen) -> list[str]:
    result, last = seen.result, seen.probe.moments[-1]
    accuracy = f"{100 * last.accuracy:.1f} %"
    return [name, result.policy, accuracy, number(last.loss), number(result.updates), number(result.steps)]


def as_values(diagnosis: Diagnosis, command: str) -> dict[str, Any]:
    charts: list[Chart] = [chart for group in list_charts(diagnosis).values() for chart in group]
    return {
        "command": command,
        "version": __version__,
        "layers": list(diagnosis.layers),
        "runs": {name: seen.result for name, seen in diagnosis.runs.items()},
        "moments": [
            {
                "samples": moment.samples,
                "accuracy": moment.accuracy,
                "eigenvalue": moment.eigenvalue,
                "gradient_variance": moment.spread.variance if moment.spread else None,
                "gradient_sq_norm": moment.spread.sq_norm if moment.spread else None,
            }
            for moment in diagnosis.runs["BSP"].probe.moments
        ],
        "figures": {chart.key: {"headings": chart.headings, "rows": chart.rows} for chart in charts},
    }
