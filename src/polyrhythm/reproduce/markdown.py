"""A page as markdown, with its figures as files beside it."""

from collections.abc import Iterator, Sequence

from polyrhythm.report.picture import svg
from polyrhythm.reproduce.page import Page, Plot, Row, Section, Table

HEADINGS = ("what", "in the paper", "paper", "here", "why they differ")


def markdown(page: Page, command: str) -> str:
    """The page, the command behind it on top."""
    parts = [f"# {page.title}", f"```sh\n{command}\n```", page.source]
    parts.append(table(("condition", ""), [(name, value) for name, value in page.conditions.items()]))
    parts += [part for section in page.sections for part in section_parts(page.name, section)]
    if page.missing:
        parts += ["## Not here", "\n".join(f"- {line}" for line in page.missing)]
    return "\n\n".join(parts) + "\n"


def section_parts(name: str, section: Section) -> Iterator[str]:
    """The paragraphs of a section."""
    yield f"## {section.title}"
    if section.text:
        yield section.text
    if section.rows:
        yield table(HEADINGS, [row_cells(row) for row in section.rows])
    for each in section.tables:
        yield from table_parts(each)
    for plot in section.plots:
        yield f"![{plot.title}]({picture_name(name, plot)})"
        yield plot.caption


def row_cells(row: Row) -> tuple[str, ...]:
    """A claim and what came out."""
    return row.what, row.place, row.paper, str(row.ours), row.why


def table_parts(each: Table) -> Iterator[str]:
    """A table and its title."""
    if each.title:
        yield f"**{each.title}**"
    yield table(each.headings, each.rows)


def table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of cells, which may hold a bar.

    >>> print(table(("a", "b"), [("1", "x|y")]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    head, *body = (f"| {' | '.join(map(cell, line))} |" for line in (headings, *rows))
    return "\n".join([head, "|---" * len(headings) + "|", *body])


def cell(text: str) -> str:
    """Text that stays in its cell."""
    return text.replace("|", "\\|").replace("\n", " ")


def pictures(page: Page) -> dict[str, str]:
    """File names and SVGs of all figures."""
    plots = [plot for section in page.sections for plot in section.plots]
    return {picture_name(page.name, plot): svg(chart_of(plot).figure, plot.title) for plot in plots}


def picture_name(name: str, plot: Plot) -> str:
    """File of a figure."""
    return f"{name}-{plot.key}.svg"
