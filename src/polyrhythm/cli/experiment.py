"""Runs the policies of a command, shows how far they are, and hands on what came out."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec
import typer

from polyrhythm.cli.group import FAILED, INTERRUPTED, complain
from polyrhythm.cli.outputs import Outputs
from polyrhythm.errors import UsageError
from polyrhythm.policies import parse_policy
from polyrhythm.report.facts import troubles
from polyrhythm.telemetry.result import RunResult

if TYPE_CHECKING:
    from polyrhythm.sim import Scenario

Trials: TypeAlias = Callable[["Experiment", list[RunResult], Path | None], None]
"""Runs an experiment, appends to the results whatever has finished, and keeps traces in the folder if there is one."""


@dataclass(frozen=True)
class Experiment:
    command: str
    scenario: "Scenario"
    policies: Sequence[str]
    seeds: Sequence[int]
    target: float | None
    outputs: Outputs
    jobs: int = 1


def compare_policies(experiment: Experiment, results: list[RunResult], traces: Path | None) -> None:
    from polyrhythm.cli.terminal import runs_progress
    from polyrhythm.sim import sweep

    with runs_progress() as progress:
        bar = progress.add_task("runs", total=len(experiment.policies) * len(experiment.seeds))

        def finished(result: RunResult) -> None:
            results.append(result)
            progress.advance(bar)

        results[:] = sweep(
            experiment.scenario,
            experiment.policies,
            experiment.seeds,
            target=experiment.target,
            trace_dir=traces,
            jobs=experiment.jobs,
            on_result=finished,
        )


def simulate_policy(experiment: Experiment, results: list[RunResult], traces: Path | None) -> None:
    """The first policy with the first seed, in this process."""
    from polyrhythm.cli.terminal import share_progress
    from polyrhythm.sim import simulate
    from polyrhythm.sim.run import trace_name

    policy, seed = parse_policy(experiment.policies[0]), experiment.seeds[0]
    trace = traces / trace_name(policy, seed) if traces else None
    with share_progress() as progress:
        bar = progress.add_task(policy.spec, total=1.0)
        result = simulate(
            experiment.scenario,
            policy,
            seed=seed,
            target=experiment.target,
            trace=trace,
            progress=lambda share: progress.update(bar, completed=share),
        )
    results.append(result)


def conduct(experiment: Experiment, trials: Trials) -> None:
    """Run, print the table and write the outputs; leaves with an exit code if a run failed.

    Ctrl-C ends the runs; what has finished by then is printed and written all the same.
    """
    check(experiment)
    results: list[RunResult] = []
    with trace_folder(experiment.outputs) as traces:
        interrupted = was_interrupted(lambda: trials(experiment, results, traces))
        if results:
            conclude(experiment, results)
    for line in troubles(results):
        complain(line)
    if interrupted:
        complain(f"interrupted: {len(results)} of {len(experiment.policies) * len(experiment.seeds)} runs had finished")
        raise typer.Exit(INTERRUPTED)
    if any(result.status != "ok" for result in results):
        raise typer.Exit(FAILED)


def check(experiment: Experiment) -> None:
    for spec in experiment.policies:
        parse_policy(spec)
    if experiment.target is not None and experiment.scenario.training is None:
        raise UsageError(f"--target {experiment.target:g} needs a model, but the scenario has no training table")
    experiment.outputs.prepare()


def was_interrupted(work: Callable[[], None]) -> bool:
    try:
        work()
    except KeyboardInterrupt:
        return True
    return False


@contextmanager
def trace_folder(outputs: Outputs) -> Iterator[Path | None]:
    """Where traces go: the folder that was asked for, one that vanishes afterwards if an output needs them, or none."""
    if not outputs.need_traces:
        yield outputs.trace
        return
    with tempfile.TemporaryDirectory(prefix="polyrhythm-") as folder:
        yield Path(folder)


def conclude(experiment: Experiment, results: Sequence[RunResult]) -> None:
    from polyrhythm.cli.terminal import print_results
    from polyrhythm.sim import scenario_toml

    print_results(results)
    scenario = experiment.scenario
    try:
        experiment.outputs.write(experiment.command, msgspec.to_builtins(scenario), scenario_toml(scenario), results)
    except OSError as error:
        raise UsageError(f"an output could not be written: {error}") from error
