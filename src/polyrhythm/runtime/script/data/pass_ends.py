"""What the end of a rank's own data means: the end of its loop, or of one pass only.

Ranks that step together may tell each other within the loop who has data left, and make their last steps without data,
or with those of a new pass. A rank that waited for the others as soon as its own data are over would wait for ever.
"""

import dis
import inspect
from collections.abc import Iterator
from threading import get_ident
from types import CodeType, FrameType

from torch import autograd
from torch.distributed import distributed_c10d

from polyrhythm.runtime.script.data.handed import within_wrapper
from polyrhythm.runtime.script.data.step_loop import FrameLines, InnerLoop, every_loop_of, holds, standing

LOOKS = 4
"""Steps that show the loop: mini-batches of the first ones may be read before it begins."""


class PassEnds:
    """Looks at the innermost loop around the script's steps and around what it reads for them.

    Attributes:
        looks: of how many steps more it is to be told, and of what is read for them.
    """

    def __init__(self) -> None:
        self._loop = InnerLoop()
        self._around: tuple[CodeType, range] | None = None
        self.looks, self._thread = LOOKS, 0
        self._meets = False
        self._met: list[FrameLines] = []
        """Where collectives were made, before the loop was known."""

    def reads(self, frame: FrameType) -> None:
        if self.looks:
            self._loop.reads(frame)

    def stepped(self, frame: FrameType) -> None:
        if self.looks:
            self.looks, self._thread = self.looks - 1, get_ident()
            self._loop.stepped(frame)
            self._around = self._loop.around

    def collective(self, frame: FrameType) -> None:
        """The script has come to one from this frame."""
        if self.meets or within_wrapper(frame) or not asked_for(frame):
            return
        if self.looks:
            self._met.append(standing(frame))
        else:
            self._meets = self._holds(standing(frame))

    @property
    def meets(self) -> bool:
        """Whether ranks meet in a collective within the loop."""
        if self._met and not self.looks:
            self._meets |= any(map(self._holds, self._met))
            self._met.clear()
        return self._meets or any(map(self._holds, self._met))

    def left(self, frame: FrameType) -> bool:
        """Whether this frame stands outside of the loop; those of other threads never do."""
        return self._around is not None and get_ident() == self._thread and not self._holds(standing(frame))

    def repeats(self, frame: FrameType) -> bool:
        """Whether a loader that is begun to be read from this frame is read again and again within the loop."""
        generators = [each for each in frames(frame) if each.f_code.co_flags & inspect.CO_GENERATOR]
        if generators:
            # a loop of an outer one may be what asks the inner ones for their first mini-batch
            begun_in = [*rounds(generators[0]), *(each for outer in generators[1:] for each in [*rounds(outer)][:-1])]
            return bool(begun_in)
        if self._around is None:
            return False
        code, lines = self._around
        return any(each.f_code is code and lines in rounds(each) for each in frames(frame))

    def _holds(self, stack: FrameLines) -> bool:
        return self._around is not None and holds(self._around[1], self._around[0], stack)


def frames(frame: FrameType | None) -> Iterator[FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def asked_for(frame: FrameType) -> bool:
    """Whether the script has called it, and not torch's reducer, which does without the functions that scripts call."""
    files = {code.co_filename for code, _ in standing(frame)}
    return distributed_c10d.__file__ in files and autograd.__file__ not in files


def rounds(frame: FrameType) -> list[range]:
    """Loops of its function of which a frame is in a round, outer ones first."""
    code, line = frame.f_code, frame.f_lineno
    around = (lines for lines in every_loop_of(code.co_filename) if line in lines)
    own = [lines for lines in around if lines.start >= code.co_firstlineno]
    return [lines for lines in own if line != lines.start or asks(frame)]


def asks(frame: FrameType) -> bool:
    """Whether a frame at the head of a loop asks for what the next round is to have, and does not begin the loop."""
    return dis.opname[frame.f_code.co_code[frame.f_lasti]] == "FOR_ITER"
