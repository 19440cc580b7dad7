"""The commands and their options."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrhythm import __version__
from polyrhythm.cli.calibrate import calibrate
from polyrhythm.cli.doctor import DoctorCommand, doctor
from polyrhythm.cli.experiment import Experiment, Trials, compare_here, compare_policies, conduct, simulate_policy
from polyrhythm.cli.group import CommandGroup
from polyrhythm.cli.installed import add_installed
from polyrhythm.cli.jobs import ctl, run, top
from polyrhythm.cli.learn import learn
from polyrhythm.cli.options import (
    FOR_REAL_WORKERS,
    MOST_SEEDS,
    Json,
    Overrides,
    ReportFile,
    RunOn,
    ScenarioName,
    Seed,
    Show,
    Target,
    TimingOnlyFlag,
    TraceDir,
    TrialsOn,
    Ui,
    given_path,
    read_scenario,
    refuse_given,
    split_policies,
    trials_on,
)
from polyrhythm.cli.outputs import Outputs, as_perfetto, check_apart, write_files
from polyrhythm.cli.search import search
from polyrhythm.cli.search_cost import search_cost
from polyrhythm.errors import UsageError
from polyrhythm.telemetry.files import check_writable

if TYPE_CHECKING:
    from polyrhythm.sim import Scenario

app = typer.Typer(
    cls=CommandGroup,
    help="Compare, choose and run synchronization policies for data-parallel training.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
traces = typer.Typer(help="Work with recorded traces.", no_args_is_help=True, rich_markup_mode=None)
app.add_typer(traces, name="trace")
app.command(context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "help_option_names": []})(run)
app.command()(ctl)
app.command()(top)
app.command()(search)
app.command()(search_cost)
app.command()(learn)
app.command()(calibrate)
app.command(cls=DoctorCommand)(doctor)


WRITTEN = ("json", "report", "trace", "timeline", "perfetto", "ui")
"""Options of what is written or shown of runs."""


def print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"polyrhythm {__version__}")
        raise typer.Exit


@app.callback()
def polyrhythm(
    version: Annotated[
        bool, typer.Option("--version", callback=print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
) -> None:
    """Compare, choose and run synchronization policies for data-parallel training."""


@app.command()
def policies() -> None:
    """List the built-in policies."""
    from polyrhythm.cli.listings import print_policies

    print_policies()


@app.command()
def scenarios() -> None:
    """List the built-in scenarios."""
    from polyrhythm.cli.listings import print_scenarios

    print_scenarios()


@app.command()
def compare(
    ctx: typer.Context,
    scenario: ScenarioName,
    policies: Annotated[
        str, typer.Option(metavar="A,B,C", help="Specs, as in bsp,ssp:3,post-local:h=8,at=0.5,./mine.py:Mine.")
    ] = "bsp,asp,ssp:3,local:8",
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, max=MOST_SEEDS, help="Repeat with this many seeds, from 0 on.")
    ] = 1,
    target: Target = None,
    json: Json = None,
    report: ReportFile = None,
    trace: TraceDir = None,
    overrides: Overrides = None,
    timing_only: TimingOnlyFlag = False,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Simulated runs at a time; one a core if not given.")
    ] = None,
    on: Annotated[
        RunOn,
        typer.Option(help="Simulate, start real workers here with the scenario's delays injected, or simulate on Ray."),
    ] = RunOn.SIM,
    time_scale: Annotated[
        float, typer.Option(metavar="X", help="Factor on the scenario's times when real workers play it.")
    ] = 1.0,
    ui: Ui = False,
    show: Show = False,
) -> None:
    """Run several policies on a simulated cluster, or on real workers, and rank them by time to target."""
    if on is not RunOn.LOCAL:
        refuse_given(ctx, ["time_scale"], FOR_REAL_WORKERS)
    loaded = read_scenario(scenario, overrides, timing_only, target)
    if show:
        print_scenario(ctx, loaded)
        return
    outputs = Outputs(json=json, report=report, trace=trace, source=scenario)
    specs = split_policies(policies)
    experiment = Experiment(ctx.obj, loaded, specs, range(seeds), target, outputs, jobs or -1, ui)
    conduct(experiment, trials_of(experiment, on, time_scale))


@app.command()
def simulate(
    ctx: typer.Context,
    scenario: ScenarioName,
    policy: Annotated[str, typer.Option(metavar="SPEC", help="The policy, as in ssp:3.")] = "bsp",
    seed: Seed = 0,
    target: Target = None,
    json: Json = None,
    report: ReportFile = None,
    trace: TraceDir = None,
    timeline: Annotated[
        Path | None,
        typer.Option(metavar="FILE.svg", parser=given_path, help="Draw how the run began: who ran and who waited."),
    ] = None,
    perfetto: Annotated[
        Path | None, typer.Option(metavar="FILE.json", parser=given_path, help="Write the run for ui.perfetto.dev.")
    ] = None,
    overrides: Overrides = None,
    timing_only: TimingOnlyFlag = False,
    show: Show = False,
) -> None:
    """Run one policy once on a simulated cluster."""
    loaded = read_scenario(scenario, overrides, timing_only, target)
    if show:
        print_scenario(ctx, loaded)
        return
    outputs = Outputs(json=json, report=report, trace=trace, timeline=timeline, perfetto=perfetto, source=scenario)
    conduct(Experiment(ctx.obj, loaded, [policy], [seed], target, outputs), simulate_policy)


@traces.command()
def export(
    trace: Annotated[Path, typer.Argument(metavar="TRACE", parser=given_path, help="A trace, as --trace writes it.")],
    perfetto: Annotated[
        Path, typer.Option(metavar="FILE.json", parser=given_path, help="Write it for ui.perfetto.dev.")
    ],
) -> None:
    """Convert a trace for another viewer."""
    check_apart({"TRACE": trace, "--perfetto": perfetto})
    check_writable("--perfetto", perfetto)
    write_files((perfetto, lambda: as_perfetto(trace)))


def trials_of(experiment: Experiment, on: RunOn, time_scale: float) -> Trials:
    """What carries out the runs of an experiment where `on` says."""
    if on is RunOn.SIM:
        return compare_here
    return compare_on_ray(experiment) if on is RunOn.RAY else on_workers(experiment, time_scale)


def compare_on_ray(experiment: Experiment) -> Trials:
    if experiment.outputs.trace or experiment.outputs.need_traces:
        raise UsageError("--trace and --report need traces, which stay on Ray's hosts; leave them or --on ray out")

    def carry_out(*arguments: Any) -> None:
        with trials_on(TrialsOn.RAY, experiment.jobs):
            compare_policies(*arguments)

    return carry_out


def on_workers(experiment: Experiment, time_scale: float) -> Trials:
    from polyrhythm.cli.local import check_playable, check_scale, compare_on_workers

    if experiment.jobs > 1:
        raise UsageError(f"--jobs {experiment.jobs} is for simulated runs; real ones go one by one, leave it out")
    check_scale(time_scale)
    check_playable(experiment.scenario)
    return partial(compare_on_workers, time_scale=time_scale)


def print_scenario(ctx: typer.Context, scenario: "Scenario") -> None:
    refuse_given(ctx, WRITTEN, "is of runs, and --show runs nothing")
    from polyrhythm.sim import scenario_toml

    typer.echo(scenario_toml(scenario).rstrip())


add_installed(app)
