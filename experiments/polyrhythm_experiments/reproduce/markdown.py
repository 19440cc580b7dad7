"""A page as markdown, with its figures as files beside it."""

from collections.abc import Iterator, Sequence

from polyrhythm.report.document import Document, DocumentSection, Grid
from polyrhythm.report.picture import svg


def markdown(name: str, page: Document) -> str:
    conditions = dict(page.facts)
    blocks = [f"# {page.title}", f"```sh\n{page.command}\n```", conditions.pop("source")]
    blocks.append(table(("condition", ""), list(conditions.items())))
    return "\n\n".join([*blocks, *(block for part in page.parts for block in part_blocks(name, part))]) + "\n"


def part_blocks(name: str, part: DocumentSection) -> Iterator[str]:
    """The paragraphs of a part."""
    yield f"## {part.title}"
    if part.text:
        yield part.text
    if part.items:
        yield "\n".join(f"- {line}" for line in part.items)
    for grid in part.grids:
        yield from grid_blocks(grid)
    for chart in part.charts:
        yield f"![{chart.title}]({name}-{chart.key}.svg)"
        yield chart.description


def grid_blocks(grid: Grid) -> Iterator[str]:
    if grid.title:
        yield f"**{grid.title}**"
    yield table(grid.headings, grid.rows)


def table(headings: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A table of cells, which may hold a bar.

    >>> print(table(("a", "b"), [("1", "x|y")]))
    | a | b |
    |---|---|
    | 1 | x\\|y |
    """
    head, *body = (f"| {' | '.join(map(cell, line))} |" for line in (headings, *rows))
    return "\n".join([head, "|---" * len(headings) + "|", *body])


def cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")


def pictures(name: str, page: Document) -> dict[str, str]:
    charts = [chart for part in page.parts for chart in part.charts]
    return {f"{name}-{chart.key}.svg": svg(chart.figure, chart.title) for chart in charts}
