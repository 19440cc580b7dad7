"""Which papers can be reproduced, and what a reproduction leaves behind."""

from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path

from polyrhythm.errors import UsageError, did_you_mean
from polyrhythm.report.document import Document, render_document
from polyrhythm.report.picture import check_pictures
from polyrhythm.telemetry.files import check_data
from polyrhythm.training.data.tasks.images import IMAGE_SETS, fetch_images
from polyrhythm_experiments.reproduce.lab import Lab, Tell, TellNow, nobody, nothing
from polyrhythm_experiments.reproduce.markdown import markdown, pictures
from polyrhythm_experiments.reproduce.numbers import as_json
from polyrhythm_experiments.reproduce.store import ResultStore

PAPERS = {
    "esync": "polyrhythm_experiments.reproduce.esync.page",
    "selsync": "polyrhythm_experiments.reproduce.selsync.page",
    "sync-switch": "polyrhythm_experiments.reproduce.sync_switch.page",
    "rlp": "polyrhythm_experiments.reproduce.rlp.page",
}
"""Module of each paper, by name; its function `page` takes a `Lab` and gives a `Document`."""


@dataclass(frozen=True)
class PaperRequest:
    """What is asked for.

    Args:
        name: of the paper, a key of `PAPERS`.
        folder: for the page, its figures and the finished runs.
        command: as it was called, for the page.
        quick: a tiny version on the embedded digits.
        seeds: how many; None are three, or one if quick.
        data: folder of the data sets' parquet files; None downloads.
        jobs: runs at a time.
        tell: as in `Lab`.
        now: as in `Lab`.
    """

    name: str
    folder: Path
    command: str
    quick: bool = False
    seeds: int | None = None
    data: str | None = None
    jobs: int = -1
    tell: Tell = nobody
    now: TellNow = nothing


def reproduce(request: PaperRequest) -> list[Path]:
    """Run a reproduction, or what is left of it, and write it down.

    Returns:
        The files: the page as markdown and as HTML, its numbers as JSON, its figures.

    Raises:
        PolyrhythmError: for an unknown name, a folder that is not there or cannot be written, or without matplotlib.
    """
    if request.name not in PAPERS:
        raise UsageError(f"unknown paper {request.name!r}: {did_you_mean(request.name, PAPERS)}")
    check_pictures("reproduce")
    check_data(request.data)
    if request.data is not None and not request.quick:
        fetch_images(IMAGE_SETS["fashion-mnist"], request.data)  # all papers read it: not found out by the first runs
    lab = Lab(
        store=ResultStore(request.folder / "runs"),
        seeds=range(request.seeds or (1 if request.quick else 3)),
        quick=request.quick,
        data=request.data,
        jobs=request.jobs,
        tell=request.tell,
        now=request.now,
    )
    page: Document = import_module(PAPERS[request.name]).page(lab)
    return write(request, replace(page, command=request.command))


def write(request: PaperRequest, page: Document) -> list[Path]:
    texts = {
        f"{request.name}.md": markdown(request.name, page),
        f"{request.name}.html": render_document(page),
        f"{request.name}.json": as_json(request.name, page),
        **pictures(request.name, page),
    }
    for name, text in texts.items():
        (request.folder / name).write_text(text, encoding="utf-8")
    return [request.folder / name for name in texts]
