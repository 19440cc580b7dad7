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

COUNTED = (
    *(ast.Name, ast.Constant, ast.Attribute, ast.Load, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.USub),
    *(ast.NamedExpr, ast.Store),
)
"""What an index may be made of beside operations, so that it grows with the number."""

BOUNDS = ("min", "max")
"""What a length may be put into; a number that is, as in ``rates[min(number, last)]``, grows no more."""

WRAPPERS = ("enumerate", "iter", "tqdm", "track")
"""Calls that give what their first argument gives, as often."""

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)

TALK = ("print", "info", "debug", "warning", "display", "set_description", "set_postfix", "add_scalar")
"""Calls that only say something."""

MEASURING = ("time", "perf_counter", "timedelta", "item", "int", "float", "str", "round", "len", "get_last_lr")
"""Calls that find out what is said."""

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
    """The line of the first that is found in the loop at whose head one is; 0 if there is none."""
    script = parsed(path)
    for loop in ast.walk(script):
        if isinstance(loop, ast.For) and loop.lineno <= line <= (loop.iter.end_lineno or loop.lineno):
            for found in find(loop, script):
                return found.lineno
    return 0


def lookups(loop: ast.For, script: ast.Module) -> Iterator[ast.expr]:
    """
    >>> code = "for n, x in enumerate(loader):\\n    at = 10 * epoch + n\\n    rates[at], x[n % 2], y[:n], z[0]"
    >>> [ast.unparse(found) for found in lookups(ast.parse(code).body[0], ast.parse(code))]
    ['rates[at]']
    """
    numbers = grown(loop, numbered(loop, script))
    for node in ast.walk(loop):
        if isinstance(node, ast.Subscript) and grows(node.slice, numbers):
            yield node


def comparisons(loop: ast.For, script: ast.Module) -> Iterator[ast.expr]:
    """Those with the length of the loader on which more depends than what the script says and when it steps.

    >>> code = "for n, x in enumerate(loader):\\n    last = n == len(loader) - 1\\n    n == len(x), n % 10 == 0"
    >>> [ast.unparse(found) for found in comparisons(ast.parse(code).body[0], ast.parse(code))]
    ['n == len(loader) - 1']
    """
    numbers = grown(loop, numbered(loop, script) | counted_by_hand(loop))
    lengths = lengths_of(loop, script)
    left_out = {id(part) for each in harmless(loop, script) for part in ast.walk(each)}
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


def harmless(loop: ast.For, script: ast.Module) -> Iterator[ast.AST]:
    """Parts of it that only say something, or decide that; or when to step, of which the job makes up for the last."""
    choices = [node for node in ast.walk(loop) if isinstance(node, ast.If)]
    around = function_around(loop, script)
    spared = [each for each in choices if steps(each) or only_talks(each, around)]
    names = names_in(each.test for each in spared) - names_in(each.test for each in choices if each not in spared)
    yield from (each.test for each in spared)
    for node in ast.walk(loop):
        given = {ast.unparse(name) for name, _ in assigned(node)}
        if says(node) or (given and given <= names):
            yield node


def steps(choice: ast.If) -> bool:
    """Whether it decides when to step, and nothing else."""
    parts = (node for part in (*choice.body, *choice.orelse) for node in ast.walk(part))
    calls = {called(node) for node in parts if isinstance(node, ast.Call)}
    return "step" in calls and calls <= {*STEPPING, *TALK, *MEASURING}


def only_talks(choice: ast.If, around: ast.AST) -> bool:
    """Whether it decides what is said, with values that nothing else in its function reads."""
    parts = (node for part in (*choice.body, *choice.orelse) for node in ast.walk(part))
    talk = all(talks(node) for node in parts if isinstance(node, ast.stmt))
    return talk and set_in(choice).isdisjoint(read_outside(choice, around))


def talks(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.If):
        return measures_only(statement.test)
    if isinstance(statement, ast.Assign):
        kept = [name for name, _ in assigned(statement)]
        return all(isinstance(name, ast.Name) for name in kept) and measures_only(statement.value)
    return says(statement)


def measures_only(value: ast.expr) -> bool:
    return all(called(node) in MEASURING for node in ast.walk(value) if isinstance(node, ast.Call))


def read_outside(choice: ast.If, scope: ast.AST) -> set[str]:
    """Names that are read in a function or script, and not within this choice; a function's own are others."""
    read: set[str] = set()
    parts = [*ast.iter_child_nodes(scope)]
    for each in parts:  # which becomes longer meanwhile
        if isinstance(each, FUNCTIONS):
            read |= read_outside(choice, each) - set_in(each)
            continue
        if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Load):
            read.add(each.id)
        parts += [choice.test] if each is choice else ast.iter_child_nodes(each)
    return read


def set_in(part: ast.AST) -> set[str]:
    stored = (node for node in ast.walk(part) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store))
    return {node.id for node in stored} | {node.arg for node in ast.walk(part) if isinstance(node, ast.arg)}


def function_around(loop: ast.For, script: ast.Module) -> ast.AST:
    """The innermost function with it, or the script."""
    functions = [node for node in ast.walk(script) if isinstance(node, FUNCTIONS)]
    around = [each for each in functions if each.lineno <= loop.lineno <= (each.end_lineno or each.lineno)]
    return around[-1] if around else script


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
    lengths = {f"len({ast.unparse(node)})" for each in read_by(loop, script) for node in named_in(each)}
    for name, value in bindings(script):
        if measures(value, lengths) and not divides(value):
            lengths.add(ast.unparse(name))
    return lengths


def read_by(loop: ast.For, script: ast.Module) -> list[ast.expr]:
    """What it goes through, also behind a name of its function: ``bar = tqdm(loader)``."""
    read, given = [loop.iter], bindings(function_around(loop, script))
    for each in read:  # which becomes longer meanwhile
        names = {ast.unparse(node) for node in named_in(each)}
        for name, value in given:
            if ast.unparse(name) in names and wraps(value) and value.func not in read:
                read += [value.func, value.args[0]]
    return read


def wraps(value: ast.expr) -> TypeGuard[ast.Call]:
    return isinstance(value, ast.Call) and bool(value.args) and called(value) in WRAPPERS


def named_in(expression: ast.expr) -> Iterator[ast.Name | ast.Attribute]:
    return (node for node in ast.walk(expression) if isinstance(node, ast.Name | ast.Attribute))


def bindings(tree: ast.AST) -> list[tuple[ast.expr, ast.expr]]:
    """Names and their values, in the order of their lines."""
    return sorted((pair for node in ast.walk(tree) for pair in assigned(node)), key=lambda pair: pair[0].lineno)


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Names and their values, also of ``most, seen = len(loader), 0``."""
    match node:
        case ast.AnnAssign(target, _, ast.expr() as value) | ast.NamedExpr(target, value):
            yield target, value
        case ast.withitem(value, ast.expr() as target):
            yield target, value
        case ast.Assign(targets, value):
            yield from (pair for target in targets for pair in paired(target, value))


def paired(target: ast.expr, value: ast.expr) -> Iterator[tuple[ast.expr, ast.expr]]:
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        yield from zip(target.elts, value.elts, strict=False)
    else:
        yield target, value


def divides(expression: ast.expr) -> bool:
    return any(isinstance(part, ast.FloorDiv) for part in ast.walk(expression))


def numbered(loop: ast.For, script: ast.Module) -> set[str]:
    """The name of the number that ``enumerate`` gives with each mini-batch."""
    names = {node.id for each in read_by(loop, script) for node in named_in(each) if isinstance(node, ast.Name)}
    first = loop.target.elts[0] if isinstance(loop.target, ast.Tuple) else None
    return {first.id} if "enumerate" in names and isinstance(first, ast.Name) else set()


def counted_by_hand(loop: ast.For) -> set[str]:
    """Names of what becomes one more with each mini-batch, and is set nowhere else in the loop.

    A loop that only hands its mini-batches on has none: what it counts says how far it is.
    """
    if any(isinstance(node, ast.Yield) for node in ast.walk(loop)):
        return set()
    counted = {ast.unparse(node.target) for node in always_done(loop.body) if adds_one(node)}
    return counted - {ast.unparse(name) for name, _ in bindings(loop)}


def always_done(statements: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    for statement in statements:
        yield statement
        if isinstance(statement, ast.With):
            yield from always_done(statement.body)


def adds_one(node: ast.stmt) -> TypeGuard[ast.AugAssign]:
    return isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and ast.unparse(node.value) == "1"


def grown(loop: ast.For, numbers: set[str]) -> set[str]:
    """These names, and those of what grows with them."""
    numbers = {*numbers}
    for name, value in bindings(loop):
        if grows(value, numbers):
            numbers.add(ast.unparse(name))
    return numbers


def grows(expression: ast.expr, numbers: set[str]) -> bool:
    """Whether an expression is a sum or product with one of these."""
    return is_plain(expression) and has_part(expression, numbers)


def measures(expression: ast.expr, lengths: set[str]) -> bool:
    """The same, or the least or the greatest of some."""
    return is_plain(expression, *BOUNDS) and has_part(expression, lengths)


def has_part(expression: ast.expr, names: set[str]) -> bool:
    parts = (part for part in ast.walk(expression) if isinstance(part, ast.Name | ast.Attribute | ast.Call))
    return any(ast.unparse(part) in names for part in parts)


def is_plain(expression: ast.expr, *functions: str) -> bool:
    parts, asked = ast.walk(expression), ("len", *functions)
    return all(isinstance(part, (*COUNTED, ast.BinOp, ast.UnaryOp)) or calls_one_of(part, asked) for part in parts)


def calls_one_of(part: ast.AST, functions: Iterable[str]) -> bool:
    return isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id in functions
