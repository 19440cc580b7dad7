"""What stands on command lines: options that several commands share, lists of policies, changes of a scenario."""

import errno
import os
import re
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polyrhythm.core.arguments import MOST_SEED
from polyrhythm.core.spec import split
from polyrhythm.errors import SpecError, UsageError, shown

if TYPE_CHECKING:
    from polyrhythm.sim import Scenario

ARGUMENT = re.compile(r"\s*([A-Za-z_]\w*=.*|[-+.\d]+|inf)\s*", re.DOTALL)
"""What cannot be a policy, hence belongs to the one before: ``key=value`` or a number."""

SHARE = re.compile(r".*@[^()@,]*", re.DOTALL)
"""A part of a switch with its share, which another part follows."""


def given_path(text: str) -> Path:
    """A path of the command line. An empty one, as of a variable that is not set, would be the current folder."""
    if not text:
        raise typer.BadParameter("an empty path; give one, or leave it out")
    try:
        os.lstat(text)
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise typer.BadParameter(f"{shown(text)}: File name too long; give a shorter one") from None
    return Path(text)


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
Json = Annotated[
    Path | None,
    typer.Option("--json", metavar="FILE", parser=given_path, help="Write the results, one object a run."),
]
ReportFile = Annotated[
    Path | None, typer.Option("--report", metavar="FILE.html", parser=given_path, help="Write one self-contained page.")
]
TraceDir = Annotated[
    Path | None, typer.Option("--trace", metavar="DIR", parser=given_path, help="Keep the trace of every run.")
]

Ui = Annotated[bool, typer.Option("--ui", help="Show it as a page, too, while it goes on.")]

MOST_SEEDS = 10_000
"""Of one command; more are a slip of the finger."""

Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=MOST_SEED, help="Seed of all that is random.")]


class RunOn(StrEnum):
    """What carries out runs: the simulator here, real workers here, or the simulator on a Ray cluster."""

    SIM = "sim"
    LOCAL = "local"
    RAY = "ray"


class TrialsOn(StrEnum):
    """Where simulated runs are computed."""

    HERE = "here"
    RAY = "ray"


On = Annotated[TrialsOn, typer.Option("--on", help="Compute the runs on this host, or on a Ray cluster.")]


def trials_on(place: TrialsOn, jobs: int | None = None) -> AbstractContextManager[None]:
    """A block whose simulated runs are computed there, so many at a time.

    Raises:
        UsageError, UnreachableError: if they would not leave this process, and as of
            `polyrhythm.search.ray_tasks.trials_on_ray`.
    """
    if place is TrialsOn.HERE:
        return nullcontext()
    if jobs == 1:
        raise UsageError("--jobs 1 computes one run at a time, in this process; leave it or --on ray out")
    from polyrhythm.search.ray_tasks import trials_on_ray

    return trials_on_ray()


def specs_like(incomplete: str) -> list[str]:
    """Specs that begin like this, for completion on the command line; the live page and ``top`` propose the same.

    >>> specs_like("ssp:")
    ['ssp:s=3']
    """
    from polyrhythm.policies import BUILT_IN
    from polyrhythm.policies._lib.completion import completions

    return completions(incomplete, BUILT_IN)


FOR_REAL_WORKERS = "is for real workers, as with --on local"
"""Why an option does nothing in the simulator."""


def refuse_given(ctx: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options on the command line that would do nothing there."""
    for name in names:
        source = ctx.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(f"--{name.replace('_', '-')} {why}; leave it out")


def read_scenario(
    name: str, overrides: list[str] | None, timing_only: bool = False, target: float | None = None
) -> "Scenario":
    from polyrhythm.sim import load_scenario

    values = read_overrides(overrides)
    if timing_only and target is not None:
        raise UsageError(f"--target {target:g} needs a model, and --timing-only trains none; leave one of them out")
    for key in values:
        if timing_only and key.startswith("training."):
            raise UsageError(f"--set {key} says how to train, and --timing-only trains nothing; leave one of them out")
    scenario = load_scenario(name, values | {"training": "none"} if timing_only else values)
    if scenario.training is not None:
        refuse_unprocessed(values)
    return scenario


def refuse_unprocessed(keys: Iterable[str]) -> None:
    """A scenario that trains processes what its training says."""
    for key in keys:
        if key.startswith("workload."):
            raise UsageError(
                f"--set {key} is for runs without training, and the scenario trains; set limits.samples or a key of "
                "training"
            )


def split_policies(text: str) -> list[str]:
    """Specs between the commas of `text`.

    A comma inside parentheses does not count, and a part that looks like ``key=value`` or like a number is a further
    argument of the spec before it; so is what follows a part with a share. Specs that are named twice count once.

    >>> split_policies("bsp,post-local:h=8,at=0.5,dssp:3,15,asp")
    ['bsp', 'post-local:h=8,at=0.5', 'dssp:3,15', 'asp']
    >>> split_policies("switch:bsp@0.25,(ssp:3)@0.5,asp,momentum=zero,bsp")
    ['switch:bsp@0.25,(ssp:3)@0.5,asp,momentum=zero', 'bsp']
    """
    specs: list[str] = []
    for part in split(text):
        if specs and part.strip() and (ARGUMENT.fullmatch(part) or SHARE.fullmatch(specs[-1])):
            specs[-1] += f",{part.strip()}"
        elif not part.strip():
            raise SpecError(f"--policies {text!r} has an empty part; write specs between commas, as in 'bsp,ssp:3'")
        else:
            specs.append(part.strip())
    return list(dict.fromkeys(specs))


def read_overrides(texts: list[str] | None) -> dict[str, str]:
    """Values by key.

    >>> read_overrides(["training.epochs=5", "training.epochs=6"])
    Traceback (most recent call last):
        ...
    polyrhythm.errors.UsageError: --set gives training.epochs twice, as '5' and as '6'; give it once
    """
    values: dict[str, str] = {}
    for key, value in map(read_override, texts or []):
        if key in values:
            raise UsageError(f"--set gives {key} twice, as {values[key]!r} and as {value!r}; give it once")
        values[key] = value
    return values


def read_override(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise UsageError(f"--set needs KEY=VALUE but got {text!r}; write for example --set training.epochs=5")
    return key, value
