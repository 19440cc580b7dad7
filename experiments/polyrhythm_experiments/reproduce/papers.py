"""Which papers can be reproduced, and what a reproduction leaves behind."""

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm import __version__
from polyrhythm.errors import UsageError, did_you_mean
from polyrhythm_experiments.reproduce.html import html
from polyrhythm_experiments.reproduce.lab import Lab, Tell, nobody
from polyrhythm_experiments.reproduce.markdown import markdown, pictures
from polyrhythm_experiments.reproduce.page import Page
from polyrhythm_experiments.reproduce.store import ResultStore

PAPERS = {
    "esync": "polyrhythm_experiments.reproduce.esync",
    "selsync": "polyrhythm_experiments.reproduce.selsync",
    "sync-switch": "polyrhythm_experiments.reproduce.sync_switch",
    "rlp": "polyrhythm_experiments.reproduce.rlp",
}
"""Module of each paper, by name; its function `page` takes a `Lab` and gives a `Page`."""


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
    """

    name: str
    folder: Path
    command: str
    quick: bool = False
    seeds: int | None = None
    data: str | None = None
    jobs: int = -1
    tell: Tell = nobody


def reproduce(request: PaperRequest) -> list[Path]:
    """Run a reproduction, or what is left of it, and write it down.

    Returns:
        The files: the page as markdown and as HTML, its numbers as JSON, its figures.

    Raises:
        UsageError: for an unknown name, or a folder that cannot be written.
    """
    if request.name not in PAPERS:
        raise UsageError(f"unknown paper {request.name!r}: {did_you_mean(request.name, PAPERS)}")
    lab = Lab(
        store=ResultStore(request.folder / "runs"),
        seeds=range(request.seeds or (1 if request.quick else 3)),
        quick=request.quick,
        data=request.data,
        jobs=request.jobs,
        tell=request.tell,
    )
    page: Page = import_module(PAPERS[request.name]).page(lab)
    return write(request, page)


def write(request: PaperRequest, page: Page) -> list[Path]:
    """All that a page leaves behind."""
    texts = {
        f"{page.name}.md": markdown(page, request.command),
        f"{page.name}.html": html(page, request.command),
        f"{page.name}.json": as_json(page, request.command),
        **pictures(page),
    }
    for name, text in texts.items():
        (request.folder / name).write_text(text, encoding="utf-8")
    return [request.folder / name for name in texts]


def as_json(page: Page, command: str) -> str:
    """The page's values, without how they are written."""
    value = {"command": command, "version": __version__, "page": page}
    encoded = msgspec.json.encode(value, enc_hook=name_of)
    return msgspec.json.format(encoded, indent=2).decode() + "\n"


def name_of(value: Any) -> str:
    """A function, which is how a number is written, as its name."""
    return str(getattr(value, "__name__", value))
