"""How many epochs a script plans, where its loop says so: ``for epoch in range(args.epochs)``."""

import ast
import linecache
import sys
from collections.abc import Iterator
from functools import cache
from types import FrameType
from typing import NamedTuple

from polyrhythm.runtime.script.notices import is_script, shown

READ = (
    *(ast.Expression, ast.Name, ast.Load, ast.Attribute, ast.Constant, ast.Subscript, ast.BinOp, ast.operator),
    *(ast.UnaryOp, ast.unaryop, ast.Call, ast.Tuple),
)
"""What the ends of a loop may be made of, so that a look at them changes nothing."""

ASKED = ("int", "len", "max", "min", "range")
"""Functions that may be called in it."""


class Planned(NamedTuple):
    """The epochs of a loop, its line, and what it calls the first of them, if it counts them one by one."""

    epochs: int
    place: str
    first: int | None = None


def planned_epochs() -> Planned | None:
    """The innermost loop over epochs that is under way; None if there is none that can be read."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            for loop in loops_at(frame.f_code.co_filename, frame.f_lineno):
                if epochs := range_of(loop, frame):
                    place = shown(frame.f_code.co_filename, loop.lineno)
                    return Planned(len(epochs), place, first_of(epochs, number_of(loop, frame)))
        frame = frame.f_back
    return None


def loop_number() -> int | None:
    """What the innermost loop over epochs that is under way calls this one; None if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            for loop in loops_at(frame.f_code.co_filename, frame.f_lineno):
                if (number := number_of(loop, frame)) is not None:
                    return number
        frame = frame.f_back
    return None


def number_of(loop: ast.For, frame: FrameType) -> int | None:
    """What a loop calls the epoch at hand, if that is a number."""
    counted = ast.unparse(loop.target)
    number = frame.f_locals.get(counted, frame.f_globals.get(counted))
    return number if type(number) is int else None


def first_of(epochs: range, number: int | None) -> int | None:
    """What the first epoch is called where each one's number is one more, and that at hand is `number`.

    >>> first_of(range(2, 10), 4), first_of(range(2, 10, 2), 4), first_of(range(2, 10), None)
    (2, 3, None)
    """
    return number - epochs.index(number) if number is not None and number in epochs else None


def loops_at(path: str, line: int) -> Iterator[ast.For]:
    """Loops over epochs around a line, by the name of what they count."""
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.For) and node.lineno <= line <= (node.end_lineno or node.lineno):
            counted = ast.unparse(node.target)
            if "epoch" in counted.lower():
                yield node


@cache
def parsed(path: str) -> ast.Module:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except SyntaxError:  # a file that was changed meanwhile, or is no Python
        return ast.Module([], [])


def range_of(loop: ast.For, frame: FrameType) -> range | None:
    """What it runs over, if that is a range, perhaps with a progress bar around it."""
    for node in ast.walk(loop.iter):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("range", "trange"):
            ends = ast.Expression(ast.Call(ast.Name("range", ast.Load()), node.args, []))
            return evaluated(ends, frame) if readable(ends) else None
    return None


def readable(expression: ast.Expression) -> bool:
    for node in ast.walk(expression):
        if not isinstance(node, READ):
            return False
        if isinstance(node, ast.Call) and not (isinstance(node.func, ast.Name) and node.func.id in ASKED):
            return False
    return True


def evaluated(expression: ast.Expression, frame: FrameType) -> range:
    code = compile(ast.fix_missing_locations(expression), "<epochs>", "eval")
    try:
        value = eval(code, frame.f_globals, frame.f_locals)
    except Exception:
        return range(0)
    return value if isinstance(value, range) else range(0)
