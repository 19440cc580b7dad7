"""Options that several commands share, and the scenario that they name."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyrhythm.cli.specs import read_override

if TYPE_CHECKING:
    from polyrhythm.sim import Scenario

ScenarioName = Annotated[
    str, typer.Argument(metavar="SCENARIO", help="Built-in name (polyrhythm scenarios) or TOML file.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change the scenario, such as training.learning_rate=0.1."),
]
Target = Annotated[
    float | None, typer.Option(metavar="ACC", min=0, max=1, help="Accuracy to reach; the scenario's own if not given.")
]
TimingOnlyFlag = Annotated[bool, typer.Option("--timing-only", help="Train no model: times, waits and bytes alone.")]
Show = Annotated[bool, typer.Option("--show", help="Print the scenario in force and stop.")]
Json = Annotated[Path | None, typer.Option("--json", metavar="FILE", help="Write the results, one object a run.")]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", help="Write one self-contained page.")
]
TraceDir = Annotated[Path | None, typer.Option("--trace", metavar="DIR", help="Keep the trace of every run.")]


def read_scenario(name: str, overrides: list[str] | None, timing_only: bool) -> "Scenario":
    from polyrhythm.sim import load_scenario

    values = dict(map(read_override, overrides or []))
    return load_scenario(name, values | {"training": "none"} if timing_only else values)
