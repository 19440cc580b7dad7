"""Whether a script is still in the loop that makes its steps, read from the lines at which its functions stand.

A script that counts its steps keeps the iterator that it reads by `next`: nothing else says that it is through.
"""

import ast
import inspect
import threading
from functools import cache
from types import CodeType, FrameType
from typing import TypeAlias

from polyrhythm.runtime.script.epochs import parsed
from polyrhythm.runtime.script.notices import is_script

FrameLines: TypeAlias = list[tuple[CodeType, int]]
"""All functions that run, innermost first, each with its line."""


class StepLoop:
    """The outermost loop of the script around its latest step, and around what has read the mini-batch for it.

    A loop of a library is not looked at, so that one of the script within it, as over optimizers, is taken for none.

    Example:
        >>> import sys
        >>> loop = StepLoop()
        >>> loop.reads(sys._getframe())
        >>> loop.stepped(sys._getframe())
        >>> loop.left(sys._getframe())  # of what has no file nobody knows
        False
    """

    def __init__(self) -> None:
        self._reads_at: FrameLines = []
        """Where the latest mini-batch was read."""
        self._read_at: FrameLines = []
        """Where that of the latest step was."""
        self._stepped_at: FrameLines = []
        self._looked_at: tuple[FrameLines, FrameLines] | None = None
        """Where these two were when the loop around them was looked for: at the same lines in most steps."""
        self._loop: tuple[CodeType, range] | None = None
        self._thread = 0
        self.computes = False
        """Whether the script has begun to compute what another step may follow, perhaps in another loop."""

    def reads(self, frame: FrameType) -> None:
        """A mini-batch is read from this frame, by what may stay open when the script is through."""
        self._reads_at = standing(frame)

    def stepped(self, frame: FrameType) -> None:
        """A step is made from this frame; where nothing may stay open, nobody asks for that."""
        self.computes = False
        if not self._reads_at:
            return
        first = not self._stepped_at
        self._read_at, self._stepped_at, self._thread = self._reads_at, standing(frame), threading.get_ident()
        if first:
            self._around()  # the script's file is read now: it may be edited while it runs

    def left(self, frame: FrameType) -> bool:
        """Whether this frame stands outside of that loop, and the script has not begun another step."""
        if self.computes or self._thread != threading.get_ident() or (loop := self._around()) is None:
            return False
        code, lines = loop
        return not holds(lines, code, standing(frame))

    def _around(self) -> tuple[CodeType, range] | None:
        at = self._read_at, self._stepped_at
        if at != self._looked_at:
            self._looked_at, self._loop = at, self._around_step()
        return self._loop

    def _around_step(self) -> tuple[CodeType, range] | None:
        for code, line in reversed(self._stepped_at):
            if code.co_flags & inspect.CO_GENERATOR:  # which has left nothing while it waits
                continue
            for lines in loops_of(code.co_filename):
                if line in lines and lines.start >= code.co_firstlineno and holds(lines, code, self._read_at):
                    return code, lines
        return None


class InnerLoop(StepLoop):
    """The innermost loop, also one of a library."""

    @property
    def found(self) -> bool:
        return self.around is not None

    @property
    def around(self) -> tuple[CodeType, range] | None:
        """The loop's function and its lines."""
        return self._around()

    def _around_step(self) -> tuple[CodeType, range] | None:
        for code, line in self._stepped_at:
            for lines in reversed(every_loop_of(code.co_filename)):
                if line in lines and lines.start >= code.co_firstlineno and holds(lines, code, self._read_at):
                    return code, lines
        return None


def holds(lines: range, code: CodeType, stack: FrameLines) -> bool:
    return any(line in lines for running, line in stack if running is code)


def standing(frame: FrameType | None) -> FrameLines:
    stack = []
    while frame is not None:
        stack.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return stack


def loops_of(path: str) -> tuple[range, ...]:
    """The same, of a file of the script."""
    return every_loop_of(path) if _is_script(path) else ()


_is_script = cache(is_script)


@cache
def every_loop_of(path: str) -> tuple[range, ...]:
    """Lines of the loops in a file, outer ones first; without their ``else``."""
    if path.startswith("<"):
        return ()
    loops = [node for node in ast.walk(parsed(path)) if isinstance(node, ast.For | ast.AsyncFor | ast.While)]
    lines = [range(loop.lineno, (loop.body[-1].end_lineno or loop.lineno) + 1) for loop in loops]
    return tuple(sorted(lines, key=lambda each: each.start))
