"""TOML from somebody else: what would take a parser for ever, or out of its depth, is refused in one line."""

import re
import tomllib
from typing import Any

MOST_PARTS = 50
"""Of a key with dots; the time that a parser takes grows with the square of their number."""

LONG_KEY = re.compile(
    rf"""(?<![\w.'"-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){{{MOST_PARTS}}}""",
)
"""More parts than that with dots between them, each bare or quoted."""


BYTE_ORDER_MARK = "\ufeff"
"""What some editors begin a file with; TOML has no place for it."""


def read_toml(text: str) -> dict[str, Any]:
    """The document.

    >>> read_toml("a.b = [1, 2]")
    {'a': {'b': [1, 2]}}
    >>> read_toml("a." * 50 + "a = 1")
    Traceback (most recent call last):
        ...
    ValueError: it has a key of more than 50 parts at line 1

    Raises:
        ValueError: if it is none; one line.
    """
    text = text.removeprefix(BYTE_ORDER_MARK)
    if found := LONG_KEY.search(text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(f"it has a key of more than {MOST_PARTS} parts at line {line}")
    try:
        return tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
