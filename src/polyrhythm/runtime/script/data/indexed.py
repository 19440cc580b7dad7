"""Loops that look something up by the number of a mini-batch: ``rate = rates[epoch * len(loader) + number]``.

Under asynchronous policies a fast worker takes more mini-batches than its loader has, which such a table does not.
"""

import ast
from collections.abc import Iterator
from functools import cache
from types import FrameType

from polyrhythm.runtime.script.epochs import parsed
from polyrhythm.runtime.script.notices import is_script, shown

COUNTED = (ast.Name, ast.Constant, ast.Attribute, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.USub)
"""What an index may be made of beside operations, so that it grows with the number."""


def looked_up_at(frame: FrameType | None) -> str:
    """The line that looks something up by the number of a mini-batch, in a loop that is under way; or nothing."""
    while frame is not None:
        path = frame.f_code.co_filename
        if is_script(path) and (line := lookup(path, frame.f_lineno)):
            return shown(path, line)
        frame = frame.f_back
    return ""


@cache
def lookup(path: str, line: int) -> int:
    """The line of the first look-up in the loops around one; 0 if there is none."""
    for loop in ast.walk(parsed(path)):
        if isinstance(loop, ast.For) and loop.lineno <= line <= (loop.end_lineno or loop.lineno) and counts(loop):
            for found in lookups(loop):
                return found.lineno
    return 0


def counts(loop: ast.For) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "enumerate" for node in ast.walk(loop.iter))


def lookups(loop: ast.For) -> Iterator[ast.Subscript]:
    """
    >>> code = "for n, x in enumerate(loader):\\n    at = 10 * epoch + n\\n    rates[at], x[n % 2], y[:n], z[0]"
    >>> [ast.unparse(found) for found in lookups(ast.parse(code).body[0])]
    ['rates[at]']
    """
    numbers = set(first_name(loop.target))
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and grows(node.value, numbers):
            numbers |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.Subscript) and grows(node.slice, numbers):
            yield node


def first_name(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        yield target.elts[0].id


def grows(expression: ast.expr, numbers: set[str]) -> bool:
    """Whether an expression is a sum or product with one of these."""
    parts = list(ast.walk(expression))
    plain = all(isinstance(part, (*COUNTED, ast.BinOp, ast.UnaryOp)) or is_length(part) for part in parts)
    return plain and any(isinstance(part, ast.Name) and part.id in numbers for part in parts)


def is_length(part: ast.AST) -> bool:
    return isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "len"
