"""``polyrhythm learn``: learn a synchronization policy in simulated jobs."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrhythm.cli.group import INTERRUPTED, complain
from polyrhythm.cli.outputs import check_writable
from polyrhythm.errors import UsageError

if TYPE_CHECKING:
    from polyrhythm.rl.dqn import Preset
    from polyrhythm.rl.learn import Study


class PresetName(StrEnum):
    TUNED = "tuned"
    PAPER = "paper"


def learn(
    ctx: typer.Context,
    out: Annotated[Path, typer.Argument(metavar="FILE", help="Where the policy goes; use it as --policy rlp:FILE.")],
    preset: Annotated[
        PresetName, typer.Option(help="What works, or the RLP paper's algorithm to the letter.")
    ] = PresetName.TUNED,
    families: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Kinds of jobs to learn from; the preset's own if not given.")
    ] = None,
    pretraining: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Jobs whose runs under fixed policies come first.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(metavar="N", min=0, help="Jobs to learn from after that.")] = None,
    seed: Annotated[int, typer.Option(metavar="N", min=0, help="Seed of all that is random.")] = 0,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Parquet files of Fashion-MNIST, for its families.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Jobs at a time; one a core if not given.")
    ] = None,
    log: Annotated[Path | None, typer.Option("--log", metavar="DIR", help="Write figures for TensorBoard.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from FILE.checkpoint.")] = False,
) -> None:
    """Learn a synchronization policy from simulated jobs; it ends in one small file.

    Ctrl-C stops it; --resume goes on from the last checkpoint.
    """
    from polyrhythm.cli.terminal import runs_progress
    from polyrhythm.rl.learn import Study

    check_writable("FILE", out)
    plan = planned(preset, families, pretraining, episodes)
    with runs_progress() as progress:
        bar = progress.add_task("jobs", total=None)

        def tell(done: int, total: int) -> None:
            progress.update(bar, completed=done, total=total)

        study = Study(plan, out, seed, data, jobs or -1, writer(log), tell, ctx.obj or "")
        was_interrupted = interrupted(study.resume() if resume else study)
    if was_interrupted:
        complain(f"interrupted after {study.done} jobs; --resume goes on from {str(study.checkpoint)!r}")
        raise typer.Exit(INTERRUPTED)
    typer.echo(f"{out}: {study.score:.2f}x as fast as ASP on jobs that it did not learn from")


def planned(name: PresetName, families: str | None, pretraining: int | None, episodes: int | None) -> "Preset":
    from polyrhythm.rl.dqn import PRESETS
    from polyrhythm.rl.instances import family_named

    plan = PRESETS[name.value]
    if families is not None:
        plan = replace(plan, families=tuple(family_named(family.strip()).name for family in families.split(",")))
    if pretraining is not None:
        plan = replace(plan, pretraining=pretraining)
    return plan if episodes is None else replace(plan, episodes=episodes)


def interrupted(study: "Study") -> bool:
    try:
        study.run()
    except KeyboardInterrupt:
        return True
    return False


def writer(folder: Path | None) -> Any:
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--log needs TensorBoard; run: pip install 'polyrhythm[rl]'") from error
    return SummaryWriter(str(folder))
