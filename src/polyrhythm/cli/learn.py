"""``polyrhythm learn``: learn a synchronization policy in simulated jobs."""

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polyrhythm.cli.group import ended_early
from polyrhythm.cli.options import On, Seed, TrialsOn, Ui, given_path, trials_on
from polyrhythm.errors import UsageError
from polyrhythm.telemetry.files import check_data, check_writable, make_folder

if TYPE_CHECKING:
    from polyrhythm.live.work.board import WorkBoard
    from polyrhythm.rl.dqn import Preset
    from polyrhythm.rl.learn import Study


class PresetName(StrEnum):
    TUNED = "tuned"
    PAPER = "paper"


class LossName(StrEnum):
    RUNNING = "running"
    PROBE = "probe"


def learn(
    ctx: typer.Context,
    out: Annotated[
        Path,
        typer.Argument(metavar="FILE", parser=given_path, help="Where the policy goes; use it as --policy rlp:FILE."),
    ],
    preset: Annotated[
        PresetName, typer.Option(help="What works, or the RLP paper's algorithm to the letter.")
    ] = PresetName.TUNED,
    loss: Annotated[
        LossName, typer.Option(help="Of the mini-batches, or on a probe batch after each update, as in the paper.")
    ] = LossName.RUNNING,
    families: Annotated[
        str | None, typer.Option(metavar="A,B,C", help="Kinds of jobs to learn from; the preset's own if not given.")
    ] = None,
    pretraining: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Jobs whose runs under fixed policies come first.")
    ] = None,
    episodes: Annotated[int | None, typer.Option(metavar="N", min=0, help="Jobs to learn from after that.")] = None,
    seed: Seed = 0,
    data: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Parquet files of Fashion-MNIST, for its families.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Jobs at a time; one a core if not given.")
    ] = None,
    log: Annotated[
        Path | None, typer.Option("--log", metavar="DIR", parser=given_path, help="Write figures for TensorBoard.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on from FILE.checkpoint.")] = False,
    on: On = TrialsOn.HERE,
    ui: Ui = False,
) -> None:
    """Learn a synchronization policy from simulated jobs; it ends in one small file.

    Ctrl-C or SIGTERM stops it with the best so far in FILE; --resume goes on from the last checkpoint.
    """
    check_data(data)
    check_writable("FILE", out)
    if log:
        make_folder("--log", log)
    from polyrhythm.cli.terminal import long_work
    from polyrhythm.rl.checkpoint import check_unstarted
    from polyrhythm.rl.learn import Study  # imports torch

    plan = replace(planned(preset, families, pretraining, episodes), loss=loss.value)
    check_read(data, plan)
    study = Study(plan, out, seed, data, jobs or -1, command=ctx.obj or "")
    check_writable("FILE", study.checkpoint)
    study.resume() if resume else check_unstarted(study.checkpoint)
    if on is TrialsOn.HERE:
        fetch_data(data, plan)
    try:
        work = long_work(f"learn {out}", ctx.obj or "", LEARN_HEADS, ui)
        with trials_on(on, jobs), work as board:
            told = StudyTeller(board, study, writer(log))
            study.log, study.tell = told, told.progress
            study.run()
    except KeyboardInterrupt:
        kept = f"; the best so far, {study.score:.2f}x as fast as ASP, is in {str(out)!r}" if study.keep_best() else ""
        raise ended_early(f" after {how_far(study)}{kept}; {how_to_go_on(study)}") from None
    typer.echo(f"{out}: {study.score:.2f}x as fast as ASP on jobs that it did not learn from")


def how_far(study: "Study") -> str:
    if not study.pretrained:
        return f"{study.ready} of {study.preset.pretraining} jobs under fixed policies"
    return f"{study.done} of {study.preset.episodes} jobs"


def how_to_go_on(study: "Study") -> str:
    if study.kept:
        return f"--resume goes on from {str(study.checkpoint)!r}"
    return "nothing is kept yet, so the same command begins anew"


LEARN_HEADS = ("jobs", "validated", "verdict")
"""Of the table of networks that were validated."""

VALIDATED = "validation/asp_by_learned"
"""Name of the figure that says how good a network is."""

NAMES = {
    "train/time_per_unit": "time of an episode, of that under fixed policies",
    "train/time_s": "time of an episode, s",
    "train/loss": "loss of the network",
    VALIDATED: "times as fast as ASP in validation",
}
"""What the page calls the figures of a study."""


class StudyTeller:
    """Puts what a study does onto a board, and its figures into TensorBoard's files if there are some."""

    def __init__(self, board: "WorkBoard", study: "Study", writer: Any) -> None:
        self._board, self._study, self._writer = board, study, writer
        self._stage = ""

    def progress(self, done: int, total: int) -> None:
        stage = "episodes" if self._study.pretrained else "jobs under fixed policies"
        if stage != self._stage:
            self._stage = stage
            self._board.begin(stage, total, max(0, done - 1))
        self._board.advance(done, now=self._doing(done, total))

    def add_scalar(self, tag: str, scalar_value: float, global_step: int) -> None:
        if self._writer is not None:
            self._writer.add_scalar(tag, scalar_value, global_step)
        self._board.point(NAMES.get(tag, tag), global_step, scalar_value)
        if tag == VALIDATED:
            best = max([scalar_value, *(score for _, score in self._study.curve)])
            verdict = "accepted: the best so far" if scalar_value >= best else "refused"
            self._board.row(str(global_step), f"{scalar_value:.3f}x as fast as ASP", verdict)
            self._board.advance(best=f"{best:.3f}x as fast as ASP")

    def _doing(self, done: int, total: int) -> str:
        return f"{self._stage} {done + 1} to {total}" if done < total else "validation"


def planned(name: PresetName, families: str | None, pretraining: int | None, episodes: int | None) -> "Preset":
    from polyrhythm.rl.dqn import PRESETS
    from polyrhythm.rl.instances import family_named

    plan = PRESETS[name.value]
    if families is not None:
        plan = replace(plan, families=tuple(family_named(family.strip()).name for family in families.split(",")))
    if pretraining is not None:
        plan = replace(plan, pretraining=pretraining)
    return plan if episodes is None else replace(plan, episodes=episodes)


def check_read(data: str | None, plan: "Preset") -> None:
    from polyrhythm.rl.instances import family_named

    if data is not None and all(family_named(name).data == "digits" for name in plan.families):
        raise UsageError(
            f"--data {data!r} is read by none of {', '.join(plan.families)}; leave it out, or see --families"
        )


def fetch_data(folder: str | None, plan: "Preset") -> None:
    """Have the data in the cache, or one line, before there are processes that read them."""
    from polyrhythm.rl.data import image_data
    from polyrhythm.rl.instances import family_named

    for name in {family_named(name).data for name in plan.families}:
        image_data(name, folder)


def writer(folder: Path | None) -> Any:
    if folder is None:
        return None
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        raise UsageError("--log needs TensorBoard; run: pip install 'polyrhythm[rl]'") from error
    return SummaryWriter(str(folder))
