"""Runs the policies of a command, shows how far they are, and hands on what came out."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import typer

from polyrhythm.cli.group import FAILED, ended_early
from polyrhythm.cli.outputs import Outputs
from polyrhythm.core import Cluster, Policy, all_stages
from polyrhythm.errors import UsageError
from polyrhythm.lines import say
from polyrhythm.policies import SelSync, parse_policy
from polyrhythm.report.facts import troubles
from polyrhythm.report.table import rows
from polyrhythm.telemetry.folders import temporary_folder
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
    ui: bool = False

    @contextmanager
    def shown(self, stage: str, at_once: int | None = None) -> Iterator[Callable[[Sequence[RunResult]], None]]:
        """Show how far the runs are; the function that is given wants to be told of each that has finished."""
        from polyrhythm.cli.terminal import long_work

        planned = [(parse_policy(spec).spec, seed) for spec in self.policies for seed in self.seeds]
        slots = at_once or (self.jobs if self.jobs > 0 else os.cpu_count() or 1)
        with long_work(f"compare on {self.scenario.name}", self.command, HEADS, self.ui) as board:
            board.begin(stage, len(planned))

            def told(results: Sequence[RunResult]) -> None:
                done = {(result.policy, result.seed) for result in results}
                now = [f"{spec}, seed {seed}" for spec, seed in planned if (spec, seed) not in done][:slots]
                board.advance(len(results), now="; ".join(now), best=best_of(results))
                if results:
                    board.row(*row_of(results[-1]))

            told([])
            yield told


HEADS = ("policy", "seed", "time", "to the target", "accuracy", "how it ended")
"""Of the table of finished runs."""


def row_of(run: RunResult) -> tuple[str, ...]:
    from polyrhythm.telemetry.numbers import duration, figure

    times = duration(run.duration_s), duration(run.time_to_target_s)
    return run.policy, str(run.seed), *times, figure(run.final_accuracy), run.status


def best_of(results: Sequence[RunResult]) -> str:
    """The policy that leads the table so far; nothing while none has finished."""
    from polyrhythm.telemetry.numbers import duration

    first = next((row for row in rows(results) if row.finished), None)
    if first is None:
        return ""
    if first.time_to_target_s is not None:
        return f"{first.policy}, {duration(first.time_to_target_s)} to the target"
    return f"{first.policy}, {duration(first.duration_s)}"


def compare_here(experiment: Experiment, results: list[RunResult], traces: Path | None) -> None:
    """As `compare_policies`, on this host, whose data are read by all processes."""
    fetch_data(experiment.scenario)
    compare_policies(experiment, results, traces)


def fetch_data(scenario: "Scenario") -> None:
    """Have the images that are trained on decoded in the cache, or one line, before there are processes."""
    if scenario.training is not None and scenario.training.task not in ("digits", "text"):  # which need no torch
        from polyrhythm.training.data.tasks.images import IMAGE_SETS, fetch_images

        fetch_images(IMAGE_SETS[scenario.training.task], scenario.training.data)


def compare_policies(experiment: Experiment, results: list[RunResult], traces: Path | None) -> None:
    from polyrhythm.sim import sweep

    with experiment.shown("simulated runs") as told:

        def finished(result: RunResult) -> None:
            results.append(result)
            told(results)

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
    from polyrhythm.cli.terminal import long_work
    from polyrhythm.sim import simulate
    from polyrhythm.sim.run import trace_name

    policy, seed = parse_policy(experiment.policies[0]), experiment.seeds[0]
    trace = traces / trace_name(policy, seed) if traces else None
    with long_work(f"simulate {policy.spec}") as board:
        board.begin(policy.spec, total=100)
        result = simulate(
            experiment.scenario,
            policy,
            seed=seed,
            target=experiment.target,
            trace=trace,
            progress=lambda share: board.advance(int(100 * share)),
        )
    results.append(result)


def conduct(experiment: Experiment, trials: Trials) -> None:
    """Run, write the outputs and print the table; leaves with an exit code if a run failed.

    Ctrl-C or SIGTERM ends the runs; what has finished by then is printed and written all the same.
    """
    check(experiment)
    results: list[RunResult] = []
    with trace_folder(experiment.outputs) as traces:
        interrupted = was_interrupted(lambda: trials(experiment, results, traces))
        try:
            if results:
                conclude(experiment, results)
        finally:
            say(*troubles(results))
    if interrupted:
        planned = len(experiment.policies) * len(experiment.seeds)
        raise ended_early(f": {len(results)} of {planned} runs had finished")
    if any(result.status != "ok" for result in results):
        raise typer.Exit(FAILED)


def check(experiment: Experiment) -> None:
    for spec in experiment.policies:
        check_policy(parse_policy(spec), experiment.scenario)
    if experiment.target is not None and experiment.scenario.training is None:
        raise UsageError(f"--target {experiment.target:g} needs a model, but the scenario has no training table")
    check_optimizer(experiment.scenario)
    experiment.outputs.prepare()


def check_optimizer(scenario: "Scenario") -> None:
    """Find a name that torch does not know before every run fails for it; the default one needs no torch."""
    if scenario.training is not None and scenario.training.optimizer != "SGD":
        from polyrhythm.training.optimizer import optimizer_class

        optimizer_class(scenario.training.optimizer)


def check_policy(policy: Policy[Any], scenario: "Scenario") -> None:
    """Find a policy, or a part of a sequence, that can decide nothing in this scenario."""
    parts = [policy, *(stage.policy for stage in all_stages(policy, Cluster(scenario.workers)))]
    for part in parts:
        if isinstance(part, SelSync) and scenario.training is None:
            part.check_untrained()


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
    with temporary_folder() as folder:
        yield Path(folder)


def conclude(experiment: Experiment, results: Sequence[RunResult]) -> None:
    """Write what was asked for, then print, as nobody may read that."""
    from polyrhythm.cli.terminal import print_results
    from polyrhythm.sim import scenario_toml

    scenario = experiment.scenario
    try:
        experiment.outputs.write(experiment.command, msgspec.to_builtins(scenario), scenario_toml(scenario), results)
    finally:
        print_results(results)
