"""What a page of a reproduction is made of: values that know nothing of markdown or HTML."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from polyrhythm_experiments.reproduce.figures import Measured


@dataclass(frozen=True)
class ClaimRow:
    """One claim beside what came out here.

    Args:
        what: the quantity and its conditions.
        place: where the paper has it, as in "section 5, figure 4".
        paper: the paper's number, as it prints it.
        ours: the same quantity here.
        why: why they differ; empty where they agree.
    """

    what: str
    place: str
    paper: str
    ours: Measured | str
    why: str = ""


@dataclass(frozen=True)
class Table:
    """Cells under headings, for what has more columns than a `ClaimRow`."""

    title: str
    headings: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Series:
    """Points under one name; of bars, x are the categories."""

    name: str
    x: Sequence[float | str]
    y: Sequence[float]


@dataclass(frozen=True)
class Plot:
    """A figure: lines over a number, or groups of bars over categories."""

    key: str
    title: str
    caption: str
    x_label: str
    y_label: str
    series: Sequence[Series]
    kind: Literal["lines", "bars"] = "lines"
    log_x: bool = False
    percent_y: bool = False


@dataclass(frozen=True)
class Section:
    """A part of a page, in the order in which it is shown."""

    title: str
    text: str = ""
    rows: Sequence[ClaimRow] = ()
    tables: Sequence[Table] = ()
    plots: Sequence[Plot] = ()


@dataclass(frozen=True)
class Page:
    """A whole reproduction.

    Args:
        name: as on the command line.
        title: of the page.
        source: the paper.
        conditions: what must be known before a number is believed, by name.
        sections: what was found.
        missing: what of the paper is not here, and why.
    """

    name: str
    title: str
    source: str
    conditions: dict[str, str]
    sections: Sequence[Section]
    missing: Sequence[str] = ()
