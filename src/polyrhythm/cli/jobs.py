"""Commands about real jobs: start one, steer one."""

from enum import StrEnum
from typing import Annotated

import typer

from polyrhythm.errors import UsageError


class Action(StrEnum):
    STATUS = "status"
    SWITCH = "switch"


def run(ctx: typer.Context) -> None:
    """Start a training script's workers under a policy, on this host or as part of several; takes torchrun's flags.

    polyrhythm run --nproc-per-node 4 --policy ssp:3 train.py --lr 0.1
    """
    from polyrhythm.cli.pilot import resolved
    from polyrhythm.cli.show_config import config_table
    from polyrhythm.runtime.launch.ray import launch_anywhere

    if (table := config_table(ctx.args)) is not None:
        typer.echo(table)
        return
    raise typer.Exit(launch_anywhere(resolved(ctx.args)))


def ctl(
    job: Annotated[str, typer.Argument(metavar="JOB", help="Id of the job, as polyrhythm run prints it.")],
    action: Annotated[Action, typer.Argument(help="What to do.")] = Action.STATUS,
    policy: Annotated[str, typer.Argument(metavar="[SPEC]", help="The policy to switch to.")] = "",
    at: Annotated[
        str, typer.Option(metavar="tcp:HOST:PORT", help="Where the job's coordinator is, if it is on another host.")
    ] = "",
    token: Annotated[str, typer.Option(envvar="POLYRHYTHM_TOKEN", help="The job's token, if it has one.")] = "",
) -> None:
    """Ask a running job how it is, or switch its policy."""
    from polyrhythm.runtime.launch import control_client as steer

    if action is Action.SWITCH and not policy:
        raise UsageError("ctl JOB switch needs a policy, as in: polyrhythm ctl JOB switch asp")
    address = steer.at(job, at, token)
    state = steer.switch(address, policy) if action is Action.SWITCH else steer.status(address)
    following = f", switching to {state.switching_to}" if state.switching_to else ""
    typer.echo(f"policy {state.policy}{following}; epoch {state.epoch}; workers {', '.join(map(str, state.members))}")
    dropped = ", ".join(f"{count} {reason}" for reason, count in state.dropped.items()) or "none"
    typer.echo(f"samples {state.samples}, skipped {state.skipped}; gradients {state.applied}, dropped: {dropped}")
    for worker, arrival in state.arrivals.items():
        if arrival.late or arrival.kind:
            now = f"{arrival.relative:.1f}x the median" if arrival.late and arrival.relative else "on time now"
            typer.echo(f"worker {worker}: {arrival.kind} straggler, {now}")
