"""Reads the traces of a job, or runs it under watch, and says who is slow and what would help."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from polyrhythm.cli.group import ended_early
from polyrhythm.cli.jobs import At, JobToken, named_right
from polyrhythm.cli.options import ReportFile, given_path, refuse_given, split_policies
from polyrhythm.cli.outputs import TRACES, check_apart, json_document, write_files
from polyrhythm.errors import TraceError, UsageError
from polyrhythm.lines import say
from polyrhythm.policies import parse_policy
from polyrhythm.telemetry.files import check_writable, make_folder
from polyrhythm.telemetry.folders import temporary_folder

if TYPE_CHECKING:
    from polyrhythm.doctor.diagnosis import DoctorAnswer

WATCHED = "watched"
"""Where the context keeps the command after the two dashes."""


class DoctorCommand(TyperCommand):
    """What stands after ``--`` is a command to watch, whatever it looks like."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if "--" in args:
            cut = args.index("--")
            args, ctx.meta[WATCHED] = args[:cut], args[cut + 1 :]
        return super().parse_args(ctx, args)


def doctor(
    ctx: typer.Context,
    traces: Annotated[
        Path | None,
        typer.Argument(metavar="[TRACES | -- COMMAND]", parser=given_path, help="Traces, or a job to run and watch."),
    ] = None,
    policies: Annotated[
        str, typer.Option(metavar="A,B,C", help="Compare these; a handful from cheap to costly if not given.")
    ] = "",
    json: Annotated[bool, typer.Option("--json", help="Print the answer as JSON, and nothing else.")] = False,
    report: ReportFile = None,
    keep: Annotated[
        Path | None,
        typer.Option(metavar="DIR", parser=given_path, help="Keep what was watched, to be read again later."),
    ] = None,
    job: Annotated[str, typer.Option(metavar="JOB", help="Look at this job of polyrhythm run while it runs.")] = "",
    seconds: Annotated[float, typer.Option(help="How long to look at --job.", min=1.0, max=86_400.0)] = 20.0,
    at: At = "",
    token: JobToken = "",
) -> None:
    """Name who is slow in a job and why, and say what another policy would gain.

    polyrhythm doctor traces, doctor --job mine, or doctor -- torchrun --nproc-per-node 4 train.py
    """
    check_apart({"TRACES": traces, "--report": report}, (*TRACES, ".json", ".json.gz"))
    if report:
        check_writable("--report", report)
    specs = split_policies(policies) if policies else []
    for spec in specs:
        parse_policy(spec)
    watched: list[str] | None = ctx.meta.get(WATCHED)
    check_one(traces, job, watched)
    if not job:
        refuse_given(ctx, ["seconds", "at", "token"], "goes with --job")
    if keep and watched is None:
        raise UsageError(
            f"--keep {str(keep)!r} goes with a command to watch, as in: doctor --keep DIR -- torchrun x.py"
        )
    code = 0
    if job:
        answer = look(job, seconds, at, token, specs)
    elif traces is not None:
        answer = diagnosed(traces, specs)
    else:
        assert watched is not None, "one of both is there"
        answer, code = watch(watched, keep, specs, aside=json)
    tell(ctx.obj, answer, json, report)
    raise typer.Exit(code)


def check_one(traces: Path | None, job: str, watched: list[str] | None) -> None:
    """There is one thing to look at."""
    given = [
        *([f"traces {str(traces)!r}"] if traces is not None else []),
        *([f"--job {job}"] if job else []),
        *(["a command after --"] if watched is not None else []),
    ]
    if len(given) > 1:
        raise UsageError(f"doctor looks at one thing but got {' and '.join(given)}; give one of them")
    if not given:
        raise UsageError(
            "doctor needs traces, a job or a command; write doctor DIR, doctor --job JOB, or doctor -- torchrun x.py"
        )


def watch(command: list[str], keep: Path | None, specs: list[str], aside: bool) -> "tuple[DoctorAnswer, int]":
    """Run the command with the watcher in its ranks; the answer, and the command's exit status."""
    from polyrhythm.doctor.watch.attach import run_watched

    if not command:
        raise UsageError("there is no command after --; write for example doctor -- torchrun train.py")
    with temporary_folder() as temporary:
        folder = keep or Path(temporary)
        if keep:
            make_folder("--keep", keep)
            for old in keep.glob("*.ring"):
                old.unlink()
        try:
            code = run_watched(command, folder, aside)
        except KeyboardInterrupt:
            kept = f": what was watched until then is in {str(keep)!r}, which doctor reads" if keep else ""
            raise ended_early(kept) from None
        there = any(folder.glob("*.ring"))
        if code and not there:
            raise TraceError(
                f"the command ended with exit code {code} before a rank of it had joined a process group of at least 2"
            )
        if code:
            say(f"the command ended with exit code {code}")
        if not there:
            raise TraceError(
                f"no rank of {command[0]!r} has joined a process group of at least 2 under watch; does it start its "
                "ranks with Python on this host, and not with -I or -S?"
            )
        return diagnosed(folder, specs), code


def look(job: str, seconds: float, at: str, token: str, specs: list[str]) -> "DoctorAnswer":
    """Ask a running job for so long how far everybody is."""
    from polyrhythm.doctor.diagnosis import diagnose
    from polyrhythm.doctor.readers.running import watch_job
    from polyrhythm.runtime.launch import control_client

    with named_right(job, at):
        seen = watch_job(control_client.at(job, at, token), seconds)
    return diagnose(seen, specs)


def diagnosed(folder: Path, specs: list[str]) -> "DoctorAnswer":
    from polyrhythm.doctor.diagnosis import diagnose
    from polyrhythm.doctor.pipeline import diagnose_pipeline
    from polyrhythm.doctor.readers.folder import read_any
    from polyrhythm.doctor.readers.operations import Operations

    read = read_any(folder)
    return diagnose_pipeline(read, specs) if isinstance(read, Operations) else diagnose(read, specs)


def tell(command: str, answer: "DoctorAnswer", json: bool, report: Path | None) -> None:
    from polyrhythm.cli.doctor.show import as_page, print_answer

    try:
        write_files((report, lambda: as_page(command, answer)))
    finally:
        if json:
            typer.echo(json_document(answer), nl=False)
        else:
            print_answer(answer)
