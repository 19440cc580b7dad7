"""The process that watches a job."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from polyrhythm.live.__main__ import keep


def test_a_kept_page_is_there_as_a_whole_or_as_it_was(tmp_path: Path) -> None:
    """Who has the old page open, here by a second name, never sees half of the new one in it."""
    page, opened = tmp_path / "page.html", tmp_path / "opened.html"
    page.write_text("the page before")
    opened.hardlink_to(page)
    order: Any = SimpleNamespace(report=str(page), address=SimpleNamespace(job="j"))
    reader: Any = SimpleNamespace(after=lambda _: (None, ()))
    keep(reader, order)
    assert "</html>" in page.read_text()
    assert opened.read_text() == "the page before"
    assert {each.name for each in tmp_path.iterdir()} == {"page.html", "opened.html"}
