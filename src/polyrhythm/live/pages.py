"""The page as text: the live one, and the one that is kept, which holds all its data and loads nothing."""

from collections.abc import Sequence
from functools import cache
from importlib.resources import files

import msgspec

from polyrhythm.live.history import Frame
from polyrhythm.live.model import JobView
from polyrhythm.live.work.board import WorkView
from polyrhythm.policies import BUILT_IN
from polyrhythm.policies._lib.completion import completions
from polyrhythm.report.palette import COLOURS, NEUTRAL
from polyrhythm.report.templates import pages

PARTS = {
    "page.css": (("report", "templates/page.css"), ("live", "static/live.css")),
    "page.js": (("live", "static/common.js"), ("live", "static/timeline.js"), ("live", "static/live.js")),
    "work.js": (("live", "static/common.js"), ("live", "static/timeline.js"), ("live", "static/work.js")),
}
"""What the page's style and script are put together from; the style begins with that of all our pages."""


@cache
def asset(name: str) -> str:
    parts = (files(f"polyrhythm.{package}").joinpath(path) for package, path in PARTS[name])
    text = "\n".join(part.read_text(encoding="utf-8") for part in parts)
    return text + colours() if name == "page.css" else text


def colours() -> str:
    """The palette of all our figures, under the names of what is shown."""
    return f":root {{ --compute: {COLOURS[0]}; --transfer: {COLOURS[1]}; --wait: {NEUTRAL}; --mark: {COLOURS[4]}; }}\n"


WITHOUT_SCRIPT = {
    "page": "In a terminal: polyrhythm top JOB, or polyrhythm ctl JOB.",
    "work": "The terminal shows the same.",
}
"""Where else one sees what a page shows."""


def live_page(job: str) -> str:
    return render("page", None, job, policies=completions("", BUILT_IN))


def saved_page(job: str, view: JobView | None, frames: Sequence[Frame]) -> str:
    return render("page", {"view": view, "frames": frames}, job)


def work_page(view: WorkView, saved: bool) -> str:
    """The page of long work: the live one, or one file."""
    return render("work", {"view": view} if saved else None, view.title)


def render(name: str, kept: object | None, title: str, **more: object) -> str:
    """A page; what is kept in it cannot end the script that holds it."""
    data = None if kept is None else msgspec.json.encode(kept).decode().replace("<", "\\u003c")
    template = pages("polyrhythm.live", "static").get_template(f"{name}.html.j2")
    return template.render(
        title=title, data=data, asset=asset, script=f"{name}.js", without_script=WITHOUT_SCRIPT[name], **more
    )
