"""``polyrhythm search``: find the fastest setting of a policy that keeps the baseline's accuracy."""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from polyrhythm import __version__
from polyrhythm.cli.experiment import fetch_data
from polyrhythm.cli.group import ended_early
from polyrhythm.cli.options import FOR_REAL_WORKERS, RunOn, Ui, given_path, read_scenario, refuse_given
from polyrhythm.cli.outputs import Outputs, check_apart, json_document, write_files
from polyrhythm.errors import JobError, SpecError, UsageError
from polyrhythm.lines import say
from polyrhythm.telemetry.files import check_writable

if TYPE_CHECKING:
    from polyrhythm.live.work.board import WorkBoard
    from polyrhythm.search.loop import Finished, Runner
    from polyrhythm.search.plan import Knob, SearchPlan, SearchTrial, TrialOutcome
    from polyrhythm.search.store import TrialStore
    from polyrhythm.sim import Scenario

SWITCH = "switch:bsp@{},asp"


class WalkName(StrEnum):
    BISECT = "bisect"
    FIRST_FAILURE = "first-failure"


def search(
    ctx: typer.Context,
    scenario: Annotated[str, typer.Argument(metavar="SCENARIO", help="Built-in name or TOML file.")],
    policy: Annotated[str, typer.Option(metavar="SPEC", help="What is searched, with {} for the number.")] = SWITCH,
    safe: Annotated[float, typer.Option("--from", metavar="X", help="Value that keeps the accuracy.")] = 1.0,
    fast: Annotated[float, typer.Option("--to", metavar="X", help="Value that saves the most time.")] = 0.0,
    log: Annotated[bool, typer.Option("--log", help="Halve the logarithm of the number.")] = False,
    whole: Annotated[bool, typer.Option("--whole", help="Only whole numbers.")] = False,
    baseline: Annotated[str, typer.Option(metavar="SPEC", help="Sets the target; if not given, --from does.")] = "",
    settings: Annotated[int, typer.Option(metavar="M", help="Candidates that are tried.")] = 5,
    runs: Annotated[int, typer.Option(metavar="R", help="Runs of each, and of the baseline.")] = 3,
    baseline_runs: Annotated[int, typer.Option(metavar="R", min=0, help="Runs of the baseline; 0: as --runs.")] = 0,
    beta: Annotated[float, typer.Option(metavar="B", help="What may be lost of the target, a share of 1.")] = 0.01,
    target: Annotated[float | None, typer.Option(metavar="A", help="Accuracy to keep, without baseline runs.")] = None,
    walk: Annotated[WalkName, typer.Option(help="Go back up after a failure, or end there.")] = WalkName.BISECT,
    two_sided: Annotated[bool, typer.Option("--two-sided", help="Also reject what is better by beta.")] = False,
    error_rate: Annotated[
        float, typer.Option(metavar="E", help="Chance to accept a bad candidate, at most; 0.5 compares means.")
    ] = 0.1,
    early: Annotated[
        float, typer.Option(metavar="P", help="Stop a candidate whose chance to pass is below this; 0: never.")
    ] = 0.01,
    reuse: Annotated[bool, typer.Option(help="Go on from the beginning that runs of one seed share.")] = True,
    algorithm_1: Annotated[
        bool, typer.Option("--algorithm-1", help="As published: two-sided, means, nothing early, nothing shared.")
    ] = False,
    on: Annotated[RunOn, typer.Option(help="Simulate, run real workers here, or simulate on Ray.")] = RunOn.SIM,
    jobs: Annotated[int, typer.Option(metavar="N", min=1, help="Trials at a time.")] = 1,
    time_scale: Annotated[float, typer.Option(metavar="X", help="Factor on times that real workers play.")] = 1.0,
    store: Annotated[
        Path | None, typer.Option(metavar="FILE", parser=given_path, help="Where trials are kept; see the guide.")
    ] = None,
    json: Annotated[
        Path | None, typer.Option("--json", metavar="FILE", parser=given_path, help="Write trials and answer.")
    ] = None,
    ui: Ui = False,
    overrides: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="Change the scenario.")
    ] = None,
) -> None:
    """Search the switch point, or another number of a policy, by trial runs that are kept and never repeated.

    Ctrl-C or SIGTERM ends it with what is known so far; the same command goes on.
    """
    from polyrhythm.search.plan import Knob, SearchPlan
    from polyrhythm.search.store import TrialStore

    if on is not RunOn.LOCAL:
        refuse_given(ctx, ["time_scale"], FOR_REAL_WORKERS)
    if target is not None:
        refuse_given(ctx, ["baseline", "baseline_runs"], "is of the runs that --target takes the place of")
    if algorithm_1:
        others = [name for name, value in PUBLISHED.items() if ctx.params[name] != value]
        refuse_given(ctx, others, "is set by --algorithm-1")
        two_sided, error_rate, early, reuse, walk = True, 0.5, 0.0, False, WalkName.BISECT
    knob = Knob(policy, safe, fast, "log" if log else "linear", whole, baseline)
    plan = SearchPlan(knob, settings, runs, beta, target, walk.value, two_sided, error_rate, early, baseline_runs)
    loaded = read_scenario(scenario, overrides)
    check_apart({"SCENARIO": Path(scenario), "--store": store, "--json": json})
    check(plan, loaded, json)
    if on is RunOn.LOCAL:
        check_local(loaded, jobs, time_scale)
    if on is RunOn.SIM:
        fetch_data(loaded)
    place = store or default_store()
    trials = TrialStore(place)
    with runner_of(loaded, plan, on, jobs, reuse, time_scale) as runner:
        about = (f"search on {loaded.name}", ctx.obj, SEARCH_HEADS, ui)
        finished = carried_out(plan, runner, trials, job_of(loaded, knob, on, time_scale), about)
    try:
        write_files((json, lambda: as_json(ctx.obj, finished)))
    finally:
        print_finished(finished)
    if not finished.progress.done:
        raise ended_early(f": finished trials are in {place}; the same command goes on with them")


PUBLISHED: dict[str, Any] = {"error_rate": 0.5, "early": 0.0, "reuse": False, "walk": WalkName.BISECT}
"""What --algorithm-1 sets that an option could say otherwise."""


def check(plan: "SearchPlan", scenario: "Scenario", json: Path | None) -> None:
    from polyrhythm.policies import parse_policy

    parse_policy(plan.knob.spec(1.0))
    try:
        parse_policy(plan.knob.spec(0.5))
    except SpecError as error:
        remedy = "" if plan.knob.whole or "whole number" not in str(error) else "; --whole tries whole numbers only"
        raise SpecError(f"{error}{remedy}") from None
    parse_policy(plan.knob.target_spec)
    if scenario.training is None:
        raise UsageError("search compares accuracies, but the scenario has no training table; give it one")
    if json is not None:
        check_writable("--json", json)


def check_local(scenario: "Scenario", jobs: int, time_scale: float) -> None:
    """Find what real workers cannot do before data are read."""
    from polyrhythm.cli.local import check_playable, check_scale

    if jobs > 1:
        raise UsageError(f"--jobs {jobs} is for simulated trials; real ones go one by one, leave it out")
    check_scale(time_scale)
    check_playable(scenario)


def default_store() -> Path:
    """``$POLYRHYTHM_STORE``, or a file in the user's state folder."""
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(os.environ.get("POLYRHYTHM_STORE") or Path(base) / "polyrhythm" / "searches.db")


def job_of(scenario: "Scenario", knob: "Knob", on: RunOn, time_scale: float) -> str:
    """Fingerprint of a scenario: cluster, job, hyper-parameters, and the content of its data and policy files."""
    from polyrhythm.search.fingerprint import code_of, digest_of, fingerprint

    about = {key: value for key, value in msgspec.to_builtins(scenario).items() if key not in ABOUT}
    data = scenario.training.data if scenario.training else None
    place = {"local": time_scale} if on is RunOn.LOCAL else {}
    code = code_of(knob.spec(1.0), knob.target_spec)
    return fingerprint({"scenario": about, "data": digest_of([data] if data else []), "place": place, **code})


ABOUT = ("name", "description", "source")
"""Fields of a scenario that change nothing."""


@contextmanager
def runner_of(
    scenario: "Scenario", plan: "SearchPlan", on: RunOn, jobs: int, reuse: bool, time_scale: float
) -> "Iterator[Runner]":
    """What carries out the trials; nothing is started before the first."""
    from polyrhythm.search.runners import Processes, SerialRunner, on_ray
    from polyrhythm.search.simulated import SimulatedTrials

    jobs = min(jobs, max(plan.runs, plan.baseline_runs))  # one candidate's runs go side by side
    simulated = partial(SimulatedTrials, scenario, plan.knob, reuse=reuse and on is RunOn.SIM)
    if on is RunOn.LOCAL:
        yield SerialRunner(local_trials(scenario, time_scale))
    elif on is RunOn.RAY:
        yield on_ray(simulated(), jobs)
    elif jobs == 1:
        yield SerialRunner(simulated())
    else:
        with Processes(simulated, jobs) as processes:
            yield processes


def local_trials(scenario: "Scenario", time_scale: float) -> Any:
    from polyrhythm.cli.experiment import Experiment
    from polyrhythm.cli.local import run_one
    from polyrhythm.search.simulated import outcome_of
    from polyrhythm.training.data.tasks import build_task

    experiment = Experiment("search", scenario, [], [], None, Outputs())

    def trial_on_workers(trial: "SearchTrial") -> "TrialOutcome":
        assert scenario.training is not None, "check has seen it"
        task = build_task(scenario.training)
        result = run_one(experiment, task, trial.spec, trial.run, None, time_scale)
        if result.status == "failed":
            raise JobError(f"trial {trial.spec}, run {trial.run} failed: {result.message}")
        return outcome_of(trial, result, result.duration_s)

    return trial_on_workers


SEARCH_HEADS = ("candidate", "run", "accuracy", "training", "verdict")
"""Of the table of finished trials."""


def carried_out(
    plan: "SearchPlan", runner: "Runner", trials: "TrialStore", job: str, about: tuple[str, str, tuple[str, ...], bool]
) -> "Finished":
    """The search, with a line on stderr for each trial; if it is ended early, as far as it has come."""
    from polyrhythm.cli.terminal import long_work
    from polyrhythm.search.loop import search, so_far
    from polyrhythm.search.state import SearchState

    latest = so_far(SearchState(plan, trials.outcomes(job)), frozenset())
    try:
        with long_work(*about) as board:
            told = BoardTeller(board, plan)

            def note(found: "Finished", running: "Sequence[SearchTrial]") -> None:
                nonlocal latest
                latest = found
                told.state(found, running)

            return search(plan, runner, trials, job, told.outcome, note)
    except KeyboardInterrupt:
        return latest


class BoardTeller:
    """Puts what a search does onto a board, and a line for each trial on stderr."""

    def __init__(self, board: "WorkBoard", plan: "SearchPlan") -> None:
        self._board, self._told = board, set["SearchTrial"]()
        self._decided: set[str] = set()
        most = plan.runs * (plan.settings + (plan.target is None))
        board.begin("trials, at most", most)

    def outcome(self, outcome: "TrialOutcome") -> None:
        said = "diverged" if outcome.diverged else f"accuracy {outcome.accuracy:.4f}"
        say(f"{outcome.trial.spec}, run {outcome.trial.run}: {said}, {outcome.spent_s:.1f} s of training")

    def state(self, found: "Finished", running: "Sequence[SearchTrial]") -> None:
        outcomes, progress = found.state.outcomes, found.progress
        now = "; ".join(f"{trial.spec}, run {trial.run}" for trial in running)
        best = found.spec if progress.target is not None else ""
        self._board.advance(len(outcomes), now, f"{best}{speed_up(found)}" if best else "")
        for outcome in outcomes:
            if outcome.trial not in self._told:
                self._told.add(outcome.trial)
                self._row(found, outcome)

        for visited in progress.visited:
            if visited.spec not in self._decided:
                self._decided.add(visited.spec)
                self._board.row(visited.spec, "all", "", "", "accepted" if visited.verdict.passed else "refused")

    def _row(self, found: "Finished", outcome: "TrialOutcome") -> None:
        spec, run = outcome.trial.spec, outcome.trial.run
        known = "diverged" if outcome.diverged else f"{outcome.accuracy:.4f}"
        is_target = spec == found.state.plan.knob.target_spec
        self._board.row(spec, str(run), known, f"{outcome.spent_s:.1f} s", "baseline" if is_target else "trial")
        if not outcome.diverged:
            self._board.point("accuracy of the trials", len(self._told), outcome.accuracy)


def print_finished(finished: "Finished") -> None:
    plan, progress, state = finished.state.plan, finished.progress, finished.state
    if progress.target is None:
        typer.echo(f"target   not known yet: {len(state.outcomes)} of {plan.runs} runs of {plan.knob.target_spec}")
        return
    source = "given" if plan.target is not None else f"mean of {progress.target.size} runs of {plan.knob.target_spec}"
    typer.echo(f"target   {progress.target.mean:.4f} ({source}), margin {plan.beta:g}, {terms_of(plan)}")
    for visited in progress.visited:
        used = state.of(visited.spec)[: visited.verdict.runs]
        said = ", ".join("diverged" if o.diverged else f"{o.accuracy:.4f}" for o in used) or "the baseline itself"
        typer.echo(f"{'passes' if visited.verdict.passed else 'fails':<8} {visited.spec}: {said}")
    typer.echo(f"{'answer' if progress.done else 'so far':<8} {finished.spec}{speed_up(finished)}")
    cost = finished.cost
    typer.echo(
        f"cost     {cost.spent_s:.1f} s of training in {len(state.outcomes)} trials, {len(finished.known)} of them "
        f"from the store; {100 * cost.share:.0f} % of the {cost.algorithm_1_s:.1f} s of Algorithm 1"
    )


def terms_of(plan: "SearchPlan") -> str:
    sides = "equivalence" if plan.two_sided else "non-inferiority"
    return "means compared" if plan.error_rate == 0.5 else f"{sides} at an error rate of {plan.error_rate:g}"


def speed_up(finished: "Finished") -> str:
    state = finished.state
    ours, theirs = state.of(finished.spec), state.of(state.plan.knob.target_spec)
    if not ours or not theirs or finished.spec == state.plan.knob.target_spec:
        return ""
    ratio = sum(o.time_s for o in theirs) / len(theirs) / (sum(o.time_s for o in ours) / len(ours))
    return f", {ratio:.2f}x as fast as {state.plan.knob.target_spec}"


def as_json(command: str, finished: "Finished") -> bytes:
    progress, cost = finished.progress, finished.cost
    value = {
        "command": command,
        "version": __version__,
        "plan": finished.state.plan,
        "target_accuracy": progress.target.mean if progress.target else None,
        "done": progress.done,
        "answer": {"spec": finished.spec, "value": finished.state.plan.knob.value(progress.best)},
        "candidates": progress.visited,
        "trials": finished.state.outcomes,
        "from_store": len(finished.known),
        "spent_s": cost.spent_s,
        "algorithm_1_s": cost.algorithm_1_s,
        "share_of_algorithm_1": cost.share,
    }
    return json_document(value)
