"""Loops that look something up by the number of a mini-batch: ``rate = rates[epoch * len(loader) + number]``.

Under asynchronous policies a fast worker takes more mini-batches than its loader has, which such a table does not. A
slow one takes fewer, and never comes to what is done with the last: ``if number == len(loader) - 1: save()``.
"""

import ast
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from types import FrameType
from typing import TypeGuard

from polyrhythm.runtime.script.epochs import parsed
from polyrhythm.runtime.script.notices import is_script, shown

Finder = Callable[[ast.For, ast.Module], Iterator[ast.expr]]

COUNTED = (ast.Name, ast.Constant, ast.Attribute, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.USub)
"""What an index may be made of beside operations, so that it grows with the number."""

TALK = ("print", "info", "debug", "set_description", "set_postfix")
"""Calls that only say something."""

STEPPING = (
    *("step", "zero_grad", "update", "backward", "scale", "unscale_", "no_sync"),
    *("clip_grad_norm_", "clip_grad_value_", "parameters", "item"),
)
"""Calls that make a step, or belong to one."""


def looked_up_at(frame: FrameType | None) -> str:
    """The line that looks something up by the number of a mini-batch, in a loop that is under way; or nothing."""
    return first_at(frame, lookups)


def compared_at(frame: FrameType | None) -> str:
    """The line that compares the number of a mini-batch with how many the loader has; or nothing."""
    return first_at(frame, comparisons)


def first_at(frame: FrameType | None, find: Finder) -> str:
    while frame is not None:
        path = frame.f_code.co_filename
        if is_script(path) and (line := first_line(path, frame.f_lineno, find)):
            return shown(path, line)
        frame = frame.f_back
    return ""


@cache
def first_line(path: str, line: int, find: Finder) -> int:
    """The line of the first that is found in the loops around one; 0 if there is none."""
    for loop in ast.walk(parsed(path)):
        if isinstance(loop, ast.For) and loop.lineno <= line <= (loop.end_lineno or loop.lineno) and counts(loop):
            for found in find(loop, parsed(path)):
                return found.lineno
    return 0


def counts(loop: ast.For) -> bool:
    return any(isinstance(node, ast.Name) and node.id == "enumerate" for node in ast.walk(loop.iter))


def lookups(loop: ast.For, _: ast.Module) -> Iterator[ast.expr]:
    """
    >>> code = "for n, x in enumerate(loader):\\n    at = 10 * epoch + n\\n    rates[at], x[n % 2], y[:n], z[0]"
    >>> [ast.unparse(found) for found in lookups(ast.parse(code).body[0], ast.parse(code))]
    ['rates[at]']
    """
    numbers = numbers_of(loop)
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and grows(node.slice, numbers):
            yield node


def comparisons(loop: ast.For, script: ast.Module) -> Iterator[ast.expr]:
    """Those with the length of the loader on which more depends than what the script says and when it steps.

    >>> code = "for n, x in enumerate(loader):\\n    last = n == len(loader) - 1\\n    n == len(x), n % 10 == 0"
    >>> [ast.unparse(found) for found in comparisons(ast.parse(code).body[0], ast.parse(code))]
    ['n == len(loader) - 1']
    """
    numbers, lengths = numbers_of(loop), lengths_of(loop, script)
    left_out = {id(part) for each in harmless(loop) for part in ast.walk(each)}
    for node in ast.walk(loop):
        if id(node) not in left_out and is_comparison(node, numbers, lengths):
            yield node


def is_comparison(node: ast.AST, numbers: set[str], lengths: set[str]) -> TypeGuard[ast.expr]:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return is_rest(node.operand, numbers, lengths)
    if not isinstance(node, ast.Compare):
        return False
    sides = [node.left, *node.comparators]
    both = any(grows(side, numbers) for side in sides) and any(measures(side, lengths) for side in sides)
    return both or any(is_rest(side, numbers, lengths) for side in sides)


def is_rest(node: ast.expr, numbers: set[str], lengths: set[str]) -> bool:
    """Whether it is ``number % len(loader)``; the rest of a part of the length is as harmless as that of 10."""
    if not (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mod)):
        return False
    return grows(node.left, numbers) and measures(node.right, lengths) and not divides(node.right)


def harmless(loop: ast.For) -> Iterator[ast.AST]:
    """Parts of it that only say something, or decide that; or when to step, of which the job makes up for the last."""
    choices = [node for node in ast.walk(loop) if isinstance(node, ast.If)]
    spared = [each for each in choices if steps(each) or only_talks(each)]
    names = names_in(each.test for each in spared) - names_in(each.test for each in choices if each not in spared)
    yield from (each.test for each in spared)
    for node in ast.walk(loop):
        if says(node) or (isinstance(node, ast.Assign) and set(map(ast.unparse, node.targets)) <= names):
            yield node


def steps(choice: ast.If) -> bool:
    """Whether it decides when to step, and nothing else."""
    parts = (node for part in (*choice.body, *choice.orelse) for node in ast.walk(part))
    calls = {called(node) for node in parts if isinstance(node, ast.Call)}
    return "step" in calls and calls <= {*STEPPING, *TALK}


def only_talks(choice: ast.If) -> bool:
    return all(map(says, (*choice.body, *choice.orelse)))


def says(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and called(node.value) in TALK


def called(node: ast.Call) -> str:
    return ast.unparse(node.func).rpartition(".")[2]


def names_in(expressions: Iterable[ast.expr]) -> set[str]:
    return {node.id for each in expressions for node in ast.walk(each) if isinstance(node, ast.Name)}


def lengths_of(loop: ast.For, script: ast.Module) -> set[str]:
    """What is the length of its loader: ``len(loader)``, and names that have got it.

    >>> script = ast.parse("n = len(loader) - 1\\nten = n // 10\\nfor i, x in enumerate(tqdm(loader)): ...")
    >>> sorted(lengths_of(script.body[2], script) & {"len(loader)", "n", "ten"})
    ['len(loader)', 'n']
    """
    read = [node for node in ast.walk(loop.iter) if isinstance(node, ast.Name | ast.Attribute)]
    lengths = {f"len({ast.unparse(node)})" for node in read}
    for name, value in (pair for node in ast.walk(script) if isinstance(node, ast.Assign) for pair in assigned(node)):
        if measures(value, lengths) and not divides(value):
            lengths.add(ast.unparse(name))
    return lengths


def assigned(node: ast.Assign) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Names and their values, also of ``most, seen = len(loader), 0``."""
    for target in node.targets:
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            yield from zip(target.elts, node.value.elts, strict=False)
        else:
            yield target, node.value


def measures(expression: ast.expr, lengths: set[str]) -> bool:
    """Whether an expression is a sum or product with one of these."""
    return is_plain(expression) and any(ast.unparse(part) in lengths for part in operands(expression))


def operands(expression: ast.expr) -> Iterator[ast.expr]:
    return (part for part in ast.walk(expression) if isinstance(part, ast.Name | ast.Attribute | ast.Call))


def divides(expression: ast.expr) -> bool:
    return any(isinstance(part, ast.FloorDiv) for part in ast.walk(expression))


def numbers_of(loop: ast.For) -> set[str]:
    """Names of what grows with its mini-batches."""
    numbers = set(first_name(loop.target))
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and grows(node.value, numbers):
            numbers |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return numbers


def first_name(target: ast.expr) -> Iterator[str]:
    if isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        yield target.elts[0].id


def grows(expression: ast.expr, numbers: set[str]) -> bool:
    """Whether an expression is a sum or product with one of these."""
    return is_plain(expression) and any(
        isinstance(part, ast.Name) and part.id in numbers for part in operands(expression)
    )


def is_plain(expression: ast.expr) -> bool:
    parts = ast.walk(expression)
    return all(isinstance(part, (*COUNTED, ast.BinOp, ast.UnaryOp)) or is_length(part) for part in parts)


def is_length(part: ast.AST) -> bool:
    return isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "len"
