"""For the site: doctests in docstrings become code blocks. Markdown would take ``>>>`` for a quotation."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^(?P<indent> *)>>> .*(?:\n(?!\s*$).*)*", re.MULTILINE)
"""From a prompt to the next empty line."""


class FencedDoctests(griffe.Extension):
    """Puts fences around each doctest before its docstring is read."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Called for every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = fenced(obj.docstring.value)


def fenced(text: str) -> str:
    r"""`text` with fences around its doctests.

    >>> fenced("Adds.\n\n>>> 1 + 1\n2\n")
    'Adds.\n\n```pycon\n>>> 1 + 1\n2\n```\n'
    """
    return DOCTEST.sub(lambda block: f"{block['indent']}```pycon\n{block[0]}\n{block['indent']}```", text)
