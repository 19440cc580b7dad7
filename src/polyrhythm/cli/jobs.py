"""Commands about real jobs: start one, steer one."""

import getpass
import os
import socket
from argparse import ArgumentError, ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyrhythm.cli.options import specs_like
from polyrhythm.errors import UnreachableError, UsageError, did_you_mean

if TYPE_CHECKING:
    from polyrhythm.live.model import JobView
    from polyrhythm.runtime.wire.control_protocol import ToControlled
    from polyrhythm.runtime.wire.protocol import Address


class Action(StrEnum):
    STATUS = "status"
    SWITCH = "switch"
    DRAIN = "drain"
    REMOVE = "remove"
    CHECKPOINT = "checkpoint"
    END = "end"


MOST_DIGITS = 6
"""Of a rank."""

SAVING_S = 600.0
"""How long a checkpoint may take, with all workers' way to it."""

JOB = typer.Argument(metavar="JOB", help="Id of the job, as polyrhythm run prints it.")
JobName = Annotated[str, JOB]


def given_address(ctx: typer.Context, address: str) -> str:
    """Where a job is said to be; an empty one, as of a variable that is not set, would be a job of this host."""
    source = ctx.get_parameter_source("at")
    if not address and source is not None and source.name == "COMMANDLINE":
        raise typer.BadParameter("an empty address; give one, or leave it out")
    return address


At = Annotated[
    str,
    typer.Option(
        metavar="tcp:HOST:PORT",
        callback=given_address,
        help="Where the job's coordinator is, if it is on another host.",
    ),
]
JobToken = Annotated[str, typer.Option(envvar="POLYRHYTHM_TOKEN", help="The job's token, if it has one.")]

JobAuthority = Annotated[
    str,
    typer.Option(
        "--tls-ca",
        envvar="POLYRHYTHM_TLS_CA",
        metavar="FILE",
        help="Whose certificates the job's hosts have, with TLS.",
    ),
]


def run(ctx: typer.Context) -> None:
    """Start a training script's workers under a policy, on this host or as part of several; takes torchrun's flags.

    polyrhythm run --nproc-per-node 4 --policy ssp:3 train.py --lr 0.1
    """
    from polyrhythm.runtime.launch.forked import begin_fork

    check_early(ctx.args)
    fork = begin_fork(ctx.args, os.environ)  # imports torch, as all that follows does here

    from polyrhythm.cli.pilot import resolved
    from polyrhythm.cli.show_config import config_table
    from polyrhythm.runtime.launch.ray import launch_anywhere

    if (table := config_table(ctx.args)) is not None:
        typer.echo(table)
        return
    raise typer.Exit(launch_anywhere(resolved(ctx.args), fork))


NAMED_LATER = ("-m", "--module", "--no-python", "--no_python", "--config")
"""Flags after which a file need not be a script."""

FREE_FORM = ("sync-switch", ".py")
"""Parts of a --policy that is no plain spec."""


def check_early(arguments: Sequence[str]) -> None:
    """Answer at once, before torch is imported for torchrun's flags, where the script, a count or the policy is wrong.

    >>> check_early(["--nproc-per-node", "2", "-m", "train", "other.py"])
    >>> check_early(["--nproc-per-node", "2", "nowhere.py"])
    Traceback (most recent call last):
    polyrhythm.errors.UsageError: cannot find the script nowhere.py
    """
    flags = up_to_script(arguments)
    script = arguments[len(flags)] if len(flags) < len(arguments) else ""
    if script.endswith(".py") and not Path(script).exists():
        raise UsageError(f"cannot find the script {script}")
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for name, default in (("nproc-per-node", "auto"), ("shards", "1"), ("policy", "bsp")):
        parser.add_argument(f"--{name}", f"--{name.replace('-', '_')}", default=default)
    with suppress(ArgumentError):  # which is told later, with all that torchrun knows
        check_values(parser.parse_known_args(flags)[0])


def check_values(given: Namespace) -> None:
    from polyrhythm.policies import parse_policy
    from polyrhythm.runtime.launch.counts import BY_HOST, check_room, read_processes

    processes = 1 if given.nproc_per_node in BY_HOST else read_processes(given.nproc_per_node)
    check_room(processes, int(given.shards) if given.shards.isdecimal() else 1)
    if not any(part in given.policy for part in FREE_FORM):
        parse_policy(given.policy)


def up_to_script(arguments: Sequence[str]) -> Sequence[str]:
    """The flags before the script, or before one after which there need not be a script.

    >>> up_to_script(["--standalone", "--nproc-per-node", "2", "train.py", "--policy", "epsilon"])
    ['--standalone', '--nproc-per-node', '2']
    >>> up_to_script(["--policy=asp", "./train", "--policy", "epsilon"]), up_to_script(["-m", "train"])
    (['--policy=asp'], [])
    """
    from polyrhythm.runtime.launch.forked import SHOWS

    before = ""
    for index, word in enumerate(arguments):
        is_value = before.startswith("-") and "=" not in before and not word.endswith(".py")
        if word.partition("=")[0] in NAMED_LATER or word.startswith(SHOWS) or not (word.startswith("-") or is_value):
            return arguments[:index]
        before = word
    return arguments


def ctl(
    job: Annotated[str | None, JOB] = None,
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.STATUS,
    argument: Annotated[
        str,
        typer.Argument(
            metavar="[SPEC|RANK|HOST]",
            help="The policy to switch to, the worker to drain or remove, or the host to drain.",
            autocompletion=specs_like,
        ),
    ] = "",
    at: At = "",
    token: JobToken = "",
    tls_ca: JobAuthority = "",
    json: Annotated[bool, typer.Option("--json", help="Print all that is known, as JSON.")] = False,
) -> None:
    """Ask a running job how it is, switch its policy, drain or remove a worker, or end it; without JOB, list the jobs.

    checkpoint: one is taken now, and the command ends when it is kept.
    drain: the worker finishes its step, hands its samples back and leaves; of a host, by its address, all do.
    remove: its process is killed.
    """
    import msgspec

    from polyrhythm.runtime.launch import control_client as steer

    if job is None and at:
        raise UsageError(f"--at {at} needs the id of the job there, as in ctl JOB --at ...")
    if job is None:
        list_jobs(json)
        return
    believe(tls_ca)
    with named_right(job, at):
        view = steered(steer.at(job, at, token), action, argument)
    if json:
        typer.echo(msgspec.json.encode(view))
    else:
        describe(view)


@contextmanager
def named_right(job: str, at: str) -> Iterator[None]:
    """A job of this host that does not answer, and is none of those that run here, is misspelt."""
    from polyrhythm.runtime.launch import control_client as steer

    try:
        yield
    except UnreachableError:
        known = [] if at else steer.jobs_here()
        if not known or job in known:
            raise
        raise UsageError(f"no job {job!r} runs on this host: {did_you_mean(job, known)}") from None


def steered(address: "Address", action: Action, argument: str) -> "JobView":
    """How a job is after it was asked for something."""
    from polyrhythm.live.model import view_of
    from polyrhythm.runtime.launch import control_client as steer

    if action is Action.DRAIN and argument and not argument.isdecimal():
        ranks = ranks_on(argument, view_of(steer.ask(address, message_of(Action.STATUS, "", asker()))))
    else:
        ranks = [argument]
    for rank in ranks:
        message = message_of(action, rank, asker())
        saves = action is Action.CHECKPOINT
        state = steer.take_checkpoint(address, SAVING_S, asker()) if saves else steer.ask(address, message)
    return view_of(state)


def list_jobs(json: bool) -> None:
    import msgspec

    from polyrhythm.runtime.launch.control_client import jobs_here

    jobs = jobs_here()
    typer.echo(msgspec.json.encode(jobs) if json else "\n".join(jobs) or "no job runs on this host")


def believe(tls_ca: str) -> None:
    """Connect to other hosts with TLS."""
    from polyrhythm.runtime.wire.tls.files import CA, TlsFiles, check_files

    check_files(TlsFiles(ca=tls_ca), serves=False)
    os.environ[CA] = tls_ca


def top(job: JobName, at: At = "", token: JobToken = "", tls_ca: JobAuthority = "") -> None:
    """Show a running job in the terminal, with keys to switch its policy, and to drain or kill a worker."""
    from polyrhythm.live.top import show
    from polyrhythm.runtime.launch import control_client as steer

    believe(tls_ca)
    with named_right(job, at):
        show(steer.at(job, at, token), asker())


def asker() -> str:
    """Who types the command, for the log of the job."""
    return f"{getpass.getuser()} at {socket.gethostname()}"


def ranks_on(host: str, view: "JobView") -> list[str]:
    ranks = [str(worker.rank) for worker in view.workers if worker.host == host]
    if not ranks:
        hosts = ", ".join(sorted({worker.host for worker in view.workers if worker.host})) or "none"
        raise UsageError(
            f"ctl JOB drain needs a rank, as in: polyrhythm ctl JOB drain 2, or the address of a host with workers "
            f"beside the coordinator's ({hosts}), but got {host!r}"
        )
    return ranks


def message_of(action: Action, argument: str, by: str) -> "ToControlled":
    from polyrhythm.runtime.wire.control_protocol import AskStatus, DrainWorker, EndJob, RemoveWorker
    from polyrhythm.runtime.wire.job_config import runnable
    from polyrhythm.runtime.wire.protocol import SwitchTo

    match action:
        case Action.SWITCH if not argument:
            raise UsageError("ctl JOB switch needs a policy, as in: polyrhythm ctl JOB switch asp")
        case Action.SWITCH:
            return SwitchTo(runnable(argument), by)
        case Action.REMOVE | Action.DRAIN if not (argument.isdecimal() and len(argument) <= MOST_DIGITS):
            raise UsageError(
                f"ctl JOB {action} needs a rank, as in: polyrhythm ctl JOB {action} 2, but got {argument!r}"
            )
        case Action.DRAIN:
            return DrainWorker(int(argument), by)
        case Action.REMOVE:
            return RemoveWorker(int(argument), by)
    if argument:
        raise UsageError(f"ctl JOB {action} takes no argument but got {argument!r}; leave it out")
    return EndJob(by) if action is Action.END else AskStatus()


def describe(view: "JobView") -> None:
    """A few lines that say how the job is; speeds are those since its start."""
    from polyrhythm.live.model import policy_words
    from polyrhythm.live.screen import drift, progress, straggler
    from polyrhythm.telemetry.numbers import figure

    reported = "".join(f", {name} {figure(value)}" for name, value in view.figures.items())

    workers = ", ".join(str(worker.rank) for worker in view.workers)
    typer.echo(f"policy {policy_words(view)}; {progress(view)}; workers {workers}")
    typer.echo(f"{figure(view.samples_per_s)} samples/s, loss {figure(view.loss)}{reported}, {drift(view)}")
    dropped = ", ".join(f"{count} {reason}" for reason, count in view.dropped.items()) or "none"
    typer.echo(f"samples {view.samples}, skipped {view.skipped}; gradients {view.applied}, dropped: {dropped}")
    for notice in view.notices:
        typer.echo(notice)
    for worker in view.workers:
        if worker.straggler:
            typer.echo(f"worker {worker.rank}: {straggler(worker)}")
