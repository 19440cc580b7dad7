"""Looks inside a training run, prints what is seen, and writes it down."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING, Annotated

import typer

from polyrhythm.cli.options import Json, Overrides, ReportFile, ScenarioName, Seed, read_scenario
from polyrhythm.cli.outputs import Outputs, json_document, write_files
from polyrhythm.cli.terminal import long_work, print_figures

if TYPE_CHECKING:
    from polyrhythm.sim import Scenario
    from polyrhythm_experiments.diagnose import Diagnosis


def diagnose(
    ctx: typer.Context,
    scenario: ScenarioName,
    delta: Annotated[float, typer.Option(metavar="DELTA", min=0, help="Threshold of SelSync.")] = 0.25,
    layers: Annotated[
        str, typer.Option(metavar="A,B", help="Parameters to look at; the first, a middle and the last if not given.")
    ] = "",
    batches: Annotated[
        int, typer.Option(metavar="N", min=2, help="Mini-batches that gradients and curvature are estimated from.")
    ] = 8,
    seed: Seed = 0,
    json: Json = None,
    report: ReportFile = None,
    overrides: Overrides = None,
) -> None:
    """Train under BSP and SelSync and look inside: gradients, their change, curvature, weights."""
    named = [name.strip() for name in layers.split(",") if name.strip()]
    outputs = Outputs(json=json, report=report, source=scenario)
    look_inside(ctx.obj, read_scenario(scenario, overrides, False), Looks(seed, delta, named, batches), outputs)


@dataclass(frozen=True)
class Looks:
    seed: int
    delta: float
    layers: Sequence[str]
    batches: int


def look_inside(command: str, scenario: "Scenario", looks: Looks, outputs: Outputs) -> None:
    from polyrhythm_experiments.diagnose import diagnose
    from polyrhythm_experiments.diagnose.page import HEADINGS, as_values, cells, page

    outputs.prepare()
    with long_work("diagnose", command) as board:
        board.begin("runs", total=3)
        done = count(1)
        diagnosis = diagnose(
            scenario,
            seed=looks.seed,
            delta=looks.delta,
            layers=looks.layers,
            batches=looks.batches,
            tell=lambda: board.advance(next(done)),
        )
    try:
        write_files(
            (outputs.json, lambda: json_document(as_values(diagnosis, command))),
            (outputs.report, lambda: page(diagnosis, command)),
        )
    finally:
        print_figures(HEADINGS, [cells(name, seen) for name, seen in diagnosis.runs.items()])
        print_what_was_seen(diagnosis)


def print_what_was_seen(diagnosis: "Diagnosis") -> None:
    from polyrhythm.cli.terminal import console
    from polyrhythm_experiments.diagnose.charts import list_charts

    for charts in list_charts(diagnosis).values():
        for chart in charts:
            console().print(f"{chart.title}: {chart.description}", markup=False, soft_wrap=True)
