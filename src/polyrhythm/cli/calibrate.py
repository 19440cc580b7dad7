"""Measures what real workers cost, writes it down as a scenario, and holds the simulator against real runs of it."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
import typer

from polyrhythm.cli.experiment import Experiment, check
from polyrhythm.cli.group import FAILED, ended_early
from polyrhythm.cli.options import MOST_SEEDS, given_path, read_scenario, refuse_given, split_policies
from polyrhythm.cli.outputs import Outputs, check_apart, json_document, write_files
from polyrhythm.core.arguments import MOST_EPOCHS
from polyrhythm.errors import JobError, UsageError
from polyrhythm.lines import say
from polyrhythm.telemetry.files import check_writable
from polyrhythm.telemetry.folders import temporary_folder
from polyrhythm.telemetry.result import RunResult

if TYPE_CHECKING:
    from polyrhythm.report.agreement import Agreement
    from polyrhythm.sim import Scenario
    from polyrhythm.sim.cluster.calibration import Costs

SEED = 1_000_000
"""Of the measured runs: none of those that they are held against."""


@dataclass(frozen=True)
class Wanted:
    scenario: "Scenario"
    policies: Sequence[str]
    seeds: Sequence[int]
    epochs: float
    time_scale: float
    traces: Path | None = None

    def experiment(self, scenario: "Scenario", policies: Sequence[str], seeds: Sequence[int]) -> Experiment:
        return Experiment("", scenario, policies, seeds, None, Outputs())


class Findings(NamedTuple):
    costs: "Costs"
    scenario: "Scenario"
    real: list[RunResult]
    simulated: list[RunResult]


def calibrate(
    ctx: typer.Context,
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="Built-in name or TOML file; it must train.")],
    out: Annotated[
        Path | None, typer.Option(metavar="FILE.toml", parser=given_path, help="Write the calibrated scenario.")
    ] = None,
    policies: Annotated[
        str,
        typer.Option(
            metavar="A,B,C", help="Run these in the simulator and the runtime, and say how far the simulator is off."
        ),
    ] = "",
    seeds: Annotated[
        int,
        typer.Option(
            metavar="N", min=1, max=MOST_SEEDS, help="Seeds of the runs in the simulator and the runtime, from 0 on."
        ),
    ] = 1,
    epochs: Annotated[
        float, typer.Option(metavar="N", min=1, max=MOST_EPOCHS, help="Epochs of each measured run.")
    ] = 2.0,
    time_scale: Annotated[float, typer.Option(metavar="X", help="Factor on the scenario's times.")] = 1.0,
    traces: Annotated[
        Path | None,
        typer.Option("--from", metavar="DIR", parser=given_path, help="Measure nothing: read traces of other jobs."),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=given_path, help="Write costs, runs and errors.")
    ] = None,
    report: Annotated[
        Path | None, typer.Option(metavar="FILE.html", parser=given_path, help="Write one self-contained page.")
    ] = None,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the scenario.")
    ] = None,
) -> None:
    """Measure steps, messages and averages in short real runs on this host, and write them as a scenario."""
    from polyrhythm.cli.local import check_playable, check_scale

    loaded = read_scenario(scenario, overrides)
    check_apart({"SCENARIO": Path(scenario), "--from": traces, "--out": out, "--json": json, "--report": report})
    if traces is not None:
        refuse_given(ctx, ["seeds", "epochs", "time_scale"], "is for what is measured here, and --from reads traces")
    elif not policies:
        refuse_given(ctx, ["seeds"], "is of the runs of --policies, of which there are none")
    # What is measured, and fitted, are all-reduces.
    loaded = msgspec.structs.replace(loaded, network=msgspec.structs.replace(loaded.network, averaging="ring"))
    wanted = Wanted(loaded, split_policies(policies) if policies else [], range(seeds), epochs, time_scale, traces)
    check_scale(time_scale)
    if traces is None:
        check_playable(loaded)
    elif not traces.is_dir():
        raise UsageError(f"--from {str(traces)!r} is no folder; give that of run --trace")
    elif policies:
        raise UsageError("--policies runs real workers here, but --from has costs of others; give one of them")
    check(Experiment(ctx.obj, loaded, wanted.policies, wanted.seeds, None, Outputs(json=json, report=report)))
    if out:
        check_writable("--out", out)
    findings, complete = investigate(wanted)
    try:
        write(ctx.obj, findings, out, json, report)
    finally:
        tell(findings)
    if not complete:
        raise ended_early(f": the costs are measured, and {len(findings.real)} real runs had finished")
    if any(run.status != "ok" for run in (*findings.real, *findings.simulated)):
        raise typer.Exit(FAILED)


def investigate(wanted: Wanted) -> tuple[Findings, bool]:
    """What is found, and whether it is all that was wanted: ended early in the comparison, it is what there is."""
    from polyrhythm.cli.local import compare_on_workers
    from polyrhythm.sim import sweep
    from polyrhythm.sim.cluster.calibration import calibrated

    try:
        costs = measured(wanted) if wanted.traces is None else read(wanted.scenario, wanted.traces)
    except KeyboardInterrupt:
        raise ended_early(" while it measured; nothing is known yet, and nothing is written") from None
    made = calibrated(wanted.scenario, costs)
    real: list[RunResult] = []
    simulated: list[RunResult] = []
    if wanted.policies:
        runs = wanted.experiment(wanted.scenario, wanted.policies, wanted.seeds)
        try:
            compare_on_workers(runs, real, None, wanted.time_scale)
            simulated = sweep(made, wanted.policies, wanted.seeds, jobs=1)
        except KeyboardInterrupt:
            return Findings(costs, made, real, simulated), False
    return Findings(costs, made, real, simulated), True


def measured(wanted: Wanted) -> "Costs":
    """The costs in short runs without faults.

    Raises:
        JobError: if one of them fails; why.
    """
    from polyrhythm.cli.local import compare_on_workers
    from polyrhythm.core import Trace
    from polyrhythm.sim import Faults
    from polyrhythm.sim.cluster.calibration import ALL_REDUCE, MESSAGES, STEPS, measure

    scenario, results = wanted.scenario, list[RunResult]()
    assert scenario.training is not None, "check_playable has seen it"
    training = msgspec.structs.replace(scenario.training, epochs=wanted.epochs, samples=None)
    steady = msgspec.structs.replace(scenario, faults=Faults(), training=training)
    with temporary_folder() as folder:
        runs = wanted.experiment(steady, [STEPS, ALL_REDUCE, MESSAGES], [SEED])
        compare_on_workers(runs, results, Path(folder), wanted.time_scale)
        for run in results:
            if run.status != "ok" or run.trace_path is None:
                raise JobError(f"the run under {run.policy} that was to be measured {run.status}: {run.message}")
        traces = {run.policy: Trace.load(str(run.trace_path)) for run in results}
    last = results[-1]
    rates = [rate / wanted.time_scale for rate in scenario.bandwidths]
    return measure(traces, rates, last.bytes_pushed / last.steps, last.server_busy_s)


def read(scenario: "Scenario", folder: Path) -> "Costs":
    """The costs in the traces of a folder; what the server's processor did is not in them."""
    from polyrhythm.core import Trace
    from polyrhythm.sim.cluster.calibration import ALL_REDUCE, MESSAGES, STEPS, measure

    found = [Trace.load(path) for path in sorted(folder.glob("*.jsonl"))]
    of = {trace.header.policy: trace for trace in sorted(found, key=lambda trace: len(trace.entries))}
    for policy in (STEPS, ALL_REDUCE, MESSAGES):
        if policy not in of:
            raise UsageError(f"--from {str(folder)!r} has no trace under {policy}; keep one with run --trace")
        if of[policy].header.cluster.workers != scenario.workers:
            raise UsageError(
                f"the trace under {policy} is of {of[policy].header.cluster.workers} workers, but the scenario has "
                f"{scenario.workers}; change its devices"
            )
    return measure(of, scenario.bandwidths, scenario.network.message_bytes, None)


def tell(findings: Findings) -> None:
    from polyrhythm.cli.terminal import console, print_figures
    from polyrhythm.report.agreement import HEADINGS, rows, verdict

    for name, value in facts(findings.costs).items():
        console().print(f"{name:<16}  {value}", markup=False, soft_wrap=True)
    pairs = compared(findings)
    if pairs:
        print_figures(HEADINGS, rows(pairs))
        console().print(verdict(pairs), markup=False, soft_wrap=True)
    for run in (*findings.real, *findings.simulated):
        if run.status != "ok":
            say(f"{run.policy}, seed {run.seed}, {run.where}: {run.status}: {run.message}")


def compared(findings: Findings) -> "list[Agreement]":
    from polyrhythm.report.agreement import agreements

    return agreements(findings.real, findings.simulated)


def facts(costs: "Costs") -> dict[str, str]:
    return {
        "steps, median": ", ".join(f"{1e3 * median(times):.2f}" for times in costs.compute_s) + " ms, by worker",
        "message": f"{1e3 * costs.latency_s:.3f} ms and {costs.message_bytes:,.0f} bytes",
        "link": ", ".join(dict.fromkeys(f"{rate * 8e-6:g} Mbit/s" for rate in costs.bandwidths)),
        "server": (
            "not known: traces do not tell its processor time for a push, which is part of a message's"
            if costs.service_s is None
            else f"{1e3 * costs.service_s:.3f} ms of processor time for a push"
        ),
        "all-reduce": f"{1e3 * costs.averaging_s:.3f} ms beside its bytes"
        + (f", {1e3 * costs.hidden_s:.3f} ms of them hidden behind the backward pass" if costs.hidden_s else ""),
        "end of an epoch": f"{1e3 * costs.epoch_end_s:.1f} ms",
    }


def write(command: str, findings: Findings, out: Path | None, json: Path | None, report: Path | None) -> None:
    from polyrhythm.sim import scenario_toml

    write_files(
        (out, lambda: scenario_toml(findings.scenario)),
        (json, lambda: as_json(command, findings)),
        (report, lambda: as_page(command, findings)),
    )


def as_json(command: str, findings: Findings) -> bytes:
    """Everything as one object; what is not finite is null."""
    errors = [{**pair._asdict(), "error": pair.error} for pair in compared(findings)]
    return json_document({"command": command, **findings._asdict(), "agreement": errors})


def as_page(command: str, findings: Findings) -> str:
    from polyrhythm.report.agreement import HEADINGS, rows, verdict
    from polyrhythm.report.document import Document, DocumentSection, Grid, render_document

    pairs = compared(findings)
    parts = (
        [DocumentSection("Simulated against real", verdict(pairs), [Grid("", HEADINGS, rows(pairs))])] if pairs else []
    )
    return render_document(Document(f"Calibration: {findings.scenario.name}", command, facts(findings.costs), parts))
