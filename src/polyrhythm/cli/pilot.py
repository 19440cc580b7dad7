"""``polyrhythm run --policy sync-switch``: a script at the switch point that is known for it, or that pilots find."""

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, get_args

from polyrhythm.cli.search import SWITCH, default_store
from polyrhythm.early_end import ended_too
from polyrhythm.errors import JobError, UsageError
from polyrhythm.lines import say

if TYPE_CHECKING:
    from polyrhythm.search.plan import SearchPlan, SearchTrial, TrialOutcome
    from polyrhythm.search.store import TrialStore

NAME = "sync-switch"
VARIABLE = "POLYRHYTHM_POLICY"
WATCHED = ("--on-divergence", "end")
"""Flags of a pilot in front of those that are given: one that diverges fails at once."""
METRIC = r"accuracy[ =:]+([0-9.]+|nan)"
ASKED = re.compile(rf"(\()?(?<![\w-]){NAME}(?![\w-])(?(1)\))")
"""The policy's name in a spec, with the parentheses around it."""


@dataclass(frozen=True)
class Pilot:
    """A command line of ``polyrhythm run`` with the policy left open.

    Args:
        options: ours, beside those of run.
        flags: those of run, without the policy.
        script: the script and its arguments.
        template: the policy, with {} for the switch point.
        overruled: a line for each setting about which two places differ.
    """

    options: argparse.Namespace
    flags: tuple[str, ...]
    script: tuple[str, ...]
    template: str = SWITCH
    overruled: tuple[str, ...] = ()

    def command(self, policy: str, run: int | None = None) -> list[str]:
        """Arguments of ``polyrhythm run``; of a trial the word {run} in the script's arguments is its number."""
        script = self.script if run is None else [word.replace("{run}", str(run)) for word in self.script]
        return [*self.flags, "--policy", policy, *script]


def resolved(arguments: Sequence[str]) -> list[str]:
    """The arguments with sync-switch replaced by what is known, or found, for this job; others as they are."""
    pilot = read_pilot(arguments)
    if pilot is None:
        return list(arguments)
    from polyrhythm.runtime.launch.job_file import SEARCH_VARIABLES, STORE
    from polyrhythm.search.store import TrialStore

    say(*pilot.overruled)
    for variable in {VARIABLE, *SEARCH_VARIABLES.values()} - {STORE}:
        os.environ.pop(variable, None)  # it asks for a search, not for the policy of a run
    store, job = TrialStore(pilot.options.store or default_store()), job_of(pilot)
    if pilot.options.job_family:
        store.agree(pilot.options.job_family, shared_by_family(pilot))
    policy = store.answer(job, pilot.template)
    if policy is not None and pilot.options.search and not store.searched(job, plan_of(pilot), pilot.options.metric):
        say(
            f"{policy} was found by a search with other flags; a search with these begins, with the runs that it shares"
        )
        policy = None
    if policy is None and not pilot.options.search:
        raise UsageError(
            f"no switch point is known for this job ({named(pilot, job)}); add --search to pilot a search, "
            "or name one, as in --policy switch:bsp@0.5,asp"
        )
    if policy is None:
        refuse_several_hosts(pilot)
        policy = piloted(pilot, store, job)
    say(f"{policy} is the policy that was found for this job ({named(pilot, job)})")
    return pilot.command(policy, run=0)


def read_pilot(arguments: Sequence[str]) -> Pilot | None:
    if not may_be_asked_for(arguments):
        return None
    from polyrhythm.runtime.launch.run_flags import expanded, make_parser, split_at_script

    both = add_options(make_parser())
    given, script = split_at_script(both, arguments)
    flags, overruled, _ = expanded(both, given)
    ours = add_options(argparse.ArgumentParser(prog="polyrhythm run", allow_abbrev=False))
    ours.add_argument("--policy", default="")
    options, rest = ours.parse_known_args(flags)
    template = template_of(options.policy)
    if not template:
        return None
    check_metric(options.metric)
    return Pilot(options, tuple(rest), tuple(script), template, overruled)


def check_metric(metric: str) -> None:
    """Before anything is trained.

    Raises:
        UsageError: for what is no regular expression, or has several groups.
    """
    try:
        groups = re.compile(metric).groups
    except re.error as error:
        raise UsageError(f"--metric {metric!r} is no regular expression: {error}") from error
    if groups > 1:
        raise UsageError(f"--metric {metric!r} has {groups} groups; give it one that is a number")


def may_be_asked_for(arguments: Sequence[str]) -> bool:
    """Whether the flags, a job file or the environment may name it."""
    return NAME in os.environ.get(VARIABLE, "") or any(NAME in word or "--config" in word for word in arguments)


def template_of(policy: str) -> str:
    """The spec of the policies that are tried, with {} for the switch point; empty if nothing is asked for.

    >>> template_of("sync-switch"), template_of("elastic:policy=(sync-switch)"), template_of("asp")
    ('switch:bsp@{},asp', 'elastic:policy=(switch:bsp@{},asp)', '')
    """
    count = len(ASKED.findall(policy))
    if count == 0:
        return ""
    if count > 1:
        raise UsageError(f"--policy {policy!r} names {NAME} {count} times; one switch point can be searched")
    if f"{NAME}:" in policy:
        raise UsageError(f"--policy {policy!r}: {NAME} takes no value; a point is named as in switch:bsp@0.5,asp")
    from polyrhythm.policies import parse_policy

    template = SWITCH if policy == NAME else ASKED.sub(f"({SWITCH})", policy)
    parse_policy(template.replace("{}", "0.5"))
    return template


def add_options(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    from polyrhythm.search.plan import Walk

    ours = parser.add_argument_group(f"polyrhythm, with --policy {NAME}")
    ours.add_argument("--search", action="store_true", help="pilot a search if no switch point is known")
    ours.add_argument("--job-family", metavar="NAME", default="", help="jobs that share a switch point; see the guide")
    ours.add_argument("--store", metavar="FILE", help="where searches are kept")
    ours.add_argument("--metric", metavar="REGEX", default=METRIC, help="finds the accuracy in the script's output")
    ours.add_argument("--data", metavar="PATH", action="append", default=[], help="files that make the job what it is")
    ours.add_argument("--settings", type=int, default=5, metavar="M", help="candidates that are tried")
    ours.add_argument("--runs", type=int, default=3, metavar="R", help="runs of each, and of the baseline")
    ours.add_argument("--baseline-runs", type=int, default=0, metavar="R", help="runs of the baseline; 0: as --runs")
    ours.add_argument("--target", type=float, metavar="A", help="accuracy to keep, without runs of the baseline")
    ours.add_argument("--walk", choices=get_args(Walk), default="bisect", help="after a failure: back up, or the end")
    ours.add_argument("--two-sided", action="store_true", help="also reject what is better by beta")
    ours.add_argument("--early", type=float, default=0.01, metavar="P", help="see polyrhythm search")
    ours.add_argument("--algorithm-1", action="store_true", help="as published: two-sided, means, nothing early")
    ours.add_argument("--beta", type=float, default=0.01, help="what may be lost of the baseline's accuracy")
    ours.add_argument("--error-rate", type=float, default=0.1, metavar="E", help="see polyrhythm search")
    return parser


def job_of(pilot: Pilot) -> str:
    """Fingerprint: the script's bytes, its arguments, run's flags, the data files and the size of the cluster.

    That of a family is its name.
    """
    from polyrhythm.search.fingerprint import fingerprint

    if pilot.options.job_family:
        return fingerprint({"family": pilot.options.job_family})
    if not Path(pilot.script[0]).is_file():
        raise UsageError(f"--policy {NAME} knows a job by its script's content, but {pilot.script[0]!r} is no file")
    return fingerprint(parts_of_job(pilot))


def trials_of(pilot: Pilot) -> str:
    """Fingerprint of what an accuracy depends on: also within a family, whose jobs share the point alone."""
    from polyrhythm.search.fingerprint import fingerprint

    return fingerprint({**parts_of_job(pilot), "metric": pilot.options.metric})


def parts_of_job(pilot: Pilot) -> dict[str, object]:
    from polyrhythm.runtime.launch.run_flags import without
    from polyrhythm.search.fingerprint import code_of, digest_of

    script = Path(pilot.script[0])
    return {
        **code_of(pilot.template.replace("{}", "0.5")),
        "script": digest_of([script]) if script.is_file() else str(script),
        "arguments": pilot.script[1:],
        "flags": without(without_checkpoints(pilot).flags, ("--job", "--rdzv-id", "--trace")),  # which change nothing
        "data": digest_of(pilot.options.data),
        "processors": os.cpu_count(),
    }


def shared_by_family(pilot: Pilot) -> dict[str, str]:
    """What the jobs of a family must have in common: where BSP waits and what ASP's gradients miss depends on it."""
    from polyrhythm.runtime.launch.run_flags import make_parser

    given = make_parser().parse_args([*pilot.flags, "script"])
    return {
        "--nnodes": str(given.nnodes),
        "--nproc-per-node": str(given.nproc_per_node),
        "processors": str(os.cpu_count()),
        "--lr-convention": given.lr_convention,
    }


def named(pilot: Pilot, job: str) -> str:
    family: str = pilot.options.job_family
    return f"family {family}" if family else f"fingerprint {job}"


def refuse_several_hosts(pilot: Pilot) -> None:
    """With Ray one command starts them all."""
    from polyrhythm.runtime.launch.counts import read_hosts
    from polyrhythm.runtime.launch.environments import is_placed
    from polyrhythm.runtime.launch.run_flags import make_parser

    given = make_parser().parse_args([*pilot.flags, "script"])
    if is_placed(pilot.flags, os.environ):
        raise UsageError(
            "--search cannot go with workers that Slurm or RANK and WORLD_SIZE have placed: each would search by "
            "itself; search on one host with --nproc-per-node, or name a point, as in --policy switch:bsp@0.5,asp"
        )
    if read_hosts(given.nnodes)[1] > 1 and given.on != "ray":
        raise UsageError(
            f"--search cannot go with --nnodes {given.nnodes}: each host would search by itself; search on one host "
            "or with --on ray, or name a point, as in --policy switch:bsp@0.5,asp"
        )


def piloted(pilot: Pilot, store: "TrialStore", job: str) -> str:
    from polyrhythm.search.loop import search
    from polyrhythm.search.runners import SerialRunner

    def tell(outcome: "TrialOutcome") -> None:
        said = "diverged" if outcome.diverged else f"accuracy {outcome.accuracy:.4f}"
        say(f"pilot {outcome.trial.spec}, run {outcome.trial.run}: {said}, {outcome.time_s:.1f} s")

    runner = SerialRunner(lambda trial: piloted_trial(pilot, trial))
    plan = plan_of(pilot)
    if plan.runs > 1 and not any("{run}" in word for word in pilot.script):
        say(
            "no argument of the script has {run}, so runs may be the same one, whose spread tells nothing; give the "
            "script its seed, as in --seed {run}"
        )
    spec = search(plan, runner, store, trials_of(pilot), tell).spec
    if pilot.options.job_family:
        store.note_family(pilot.options.job_family, shared_by_family(pilot))
    store.conclude(job, spec, plan, pilot.options.metric)
    return spec


def plan_of(pilot: Pilot) -> "SearchPlan":
    from polyrhythm.search.plan import Knob, SearchPlan

    options = pilot.options
    literal: bool = options.algorithm_1
    return SearchPlan(
        Knob(pilot.template),
        settings=options.settings,
        runs=options.runs,
        beta=options.beta,
        target=options.target,
        walk="bisect" if literal else options.walk,
        two_sided=literal or options.two_sided,
        error_rate=0.5 if literal else options.error_rate,
        early=0.0 if literal else options.early,
        baseline_runs=options.baseline_runs,
    )


def piloted_trial(pilot: Pilot, trial: "SearchTrial") -> "TrialOutcome":
    """One run of the script, to its end; it ends with us if we are killed.

    Raises:
        JobError: if it fails.
    """
    from polyrhythm.runtime.wire.parent_death import dies_with_us
    from polyrhythm.search.plan import TrialOutcome
    from polyrhythm.training.divergence import DIVERGED

    words = without_checkpoints(pilot).command(trial.spec, trial.run)
    command = [sys.executable, "-m", "polyrhythm", "run", *WATCHED, *words]
    started = time.perf_counter()
    with (
        subprocess.Popen(
            command,
            env=environment_of_pilot(),
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=dies_with_us(signal.SIGTERM),
        ) as process,
        ended_too(process),
    ):
        output, _ = process.communicate()
    time_s = time.perf_counter() - started
    if process.returncode == DIVERGED:
        return TrialOutcome(trial, 0.0, time_s, time_s, diverged=True)
    if process.returncode:
        raise JobError(f"pilot {trial.spec}, run {trial.run} ended with status {process.returncode}")
    accuracy = accuracy_in(output, pilot.options.metric, trial)
    return TrialOutcome(trial, accuracy or 0.0, time_s, time_s, diverged=accuracy is None)


def without_checkpoints(pilot: Pilot) -> Pilot:
    from polyrhythm.runtime.launch.run_flags import without
    from polyrhythm.runtime.wire.config_sources import CHECKPOINTS

    return replace(pilot, flags=tuple(without(pilot.flags, [f"--{name}" for name in CHECKPOINTS])))


def environment_of_pilot() -> dict[str, str]:
    from polyrhythm.runtime.wire.config_sources import CHECKPOINTS, PILOT, VARIABLES

    unset = {VARIABLES[name] for name in CHECKPOINTS}
    return {name: value for name, value in os.environ.items() if name not in unset} | {PILOT: "1"}


def accuracy_in(output: str, metric: str, trial: "SearchTrial") -> float | None:
    """The last accuracy that a run printed; None if it is not finite."""
    found = re.findall(metric, output)
    if not found:
        raise UsageError(
            f"pilot {trial.spec}, run {trial.run} printed nothing that --metric {metric!r} finds; "
            "let the script print its accuracy at the end"
        )
    try:
        value = float(found[-1])
    except (TypeError, ValueError):
        raise UsageError(f"--metric {metric!r} found {found[-1]!r}; give it one group that is a number") from None
    if value != value:
        return None
    if not 0 <= value <= 1:
        raise UsageError(f"--metric {metric!r} found {value:g}; the accuracy must be a share of 1")
    return value
