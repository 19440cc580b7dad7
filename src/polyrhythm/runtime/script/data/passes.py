"""One run of the script over one of its loaders: what ``for batch in loader`` goes through."""

import dis
import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from itertools import chain, cycle, islice
from types import FrameType, GeneratorType
from typing import Any, Protocol

from torch.utils.data import DataLoader

from polyrhythm.runtime.script.data.engine_epochs import EngineEpochs, engine_epochs
from polyrhythm.runtime.script.data.indexed import compared_at, looked_up_at
from polyrhythm.runtime.script.data.order import numbers_kept
from polyrhythm.runtime.script.data.reading import PassStart

READERS = (cycle, zip, enumerate, map, filter, islice, chain, GeneratorType, tuple)
"""What may stand between an iterator and the loop that goes through it; `zip` and `map` keep theirs in a tuple."""

MOST_READERS = 4
"""Of these, one around the other, at most."""


class PassListener(Protocol):
    """Who is told of a pass; see `polyrhythm.runtime.script.script.AdaptedScript`."""

    def before_batch(self, run: "Pass") -> None:
        """The script asks for a mini-batch; the pass may get another source."""

    def given(self, run: "Pass") -> None: ...

    def finished(self, run: "Pass") -> None: ...


class Pass:
    """A run of the script over mini-batches whose source can change between two of them.

    Args:
        listener: told of every mini-batch.
        loader: the script's.
        source: mini-batches; None if the listener is to set it before the first.
    """

    def __init__(self, listener: PassListener, loader: DataLoader[Any], source: Iterator[Any] | None) -> None:
        self._listener = listener
        self.loader, self.source, self.start = loader, source, PassStart(loader)
        if source is None:
            self.start.draw_seed()
        self.batches = self.unstepped = self.steps = self.settled = 0
        """Mini-batches given, those since the last step, steps, and mini-batches given by the last step."""
        self.used = self.over = False
        """Whether the script has computed something that a step may follow, and whether no mini-batch is left."""
        self._held: weakref.ref[PassIterator] | None = None
        self._has_own = False
        """Whether its source is the script's own loader, for a look."""
        self.looking = False
        """Whether the script has evaluated the model on what it got, and trains on none of it."""
        self.counted = self.by_generator = False
        """Whether the script calls `next` itself, and may not ask for the end, and whether a generator reads it."""
        self.repeated = False
        """Whether ``itertools.cycle`` reads it, which gives the same mini-batches again once they are over."""
        self.goes_on = False
        """Whether it was begun within the loop around the steps, or by a generator that reads the loader in rounds."""
        self.thread = 0
        """In which a mini-batch was asked for last."""
        self.looked_up = self.compared = ""
        """Where the script looks something up by the number of a mini-batch, or compares it with how many there are."""

    def iterator(self) -> "PassIterator":
        """What the script goes through."""
        made = PassIterator(self)
        self._held = weakref.ref(made)
        return made

    @property
    def inside(self) -> bool:
        return not self.over and self._held is not None and self._held() is not None

    def find_readers(self) -> None:
        """Look at what holds it, which shows only now that the script has it."""
        held = self._held() if self._held is not None else None
        reached: list[Any] = [] if held is None else [held]
        for _ in range(MOST_READERS):
            reached = [each for each in gc.get_referrers(*reached) if type(each) in READERS]
            self.repeated |= any(type(each) is cycle for each in reached)

    @property
    def left(self) -> bool:
        """Whether the script has dropped it before its end."""
        return not self.over and not self.inside

    @property
    def trains(self) -> bool:
        """Whether it is a loop under way that has trained: what reads the same loader within it only looks."""
        return self.used and self.inside

    def look(self, read: Callable[[DataLoader[Any]], Iterator[Any]]) -> None:
        """The script evaluates its data: it gets what its own loader has, and the job's mini-batches wait."""
        if self._has_own:
            return
        self._has_own = True
        if not self.batches:
            with self.start.seed(drawn=True):
                self.source = read(self.loader)
            return
        with numbers_kept(self.loader, self.loader.sampler):
            self.source = read(self.loader)
            for _ in range(self.batches):
                next(self.source, None)

    def next_batch(self) -> Any:
        self.thread = threading.get_ident()
        self._listener.before_batch(self)
        assert self.source is not None, "the listener has set it"
        try:
            batch = next(self.source)
        except StopIteration:
            self.over = True
            self._listener.finished(self)
            raise
        self.batches += 1
        self.unstepped += 1
        self._listener.given(self)
        return batch

    def step(self) -> None:
        """Of several optimizers that step with the same mini-batches, the first one counts."""
        self.steps += self.unstepped > 0
        self.unstepped, self.settled = 0, self.batches

    def settle(self) -> None:
        """A step is made, with or without what this pass has given."""
        self.unstepped, self.settled = 0, self.batches


class PassIterator:
    def __init__(self, run: Pass) -> None:
        self._run = run
        self._engine: EngineEpochs | None = None

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._run.loader)

    def __next__(self) -> Any:
        if not self._run.batches:
            self._look_at(sys._getframe(1))
        if self._engine is None:
            return self._run.next_batch()
        with self._engine.batch(used_up=self._run.over):
            return self._run.next_batch()

    def _look_at(self, frame: FrameType) -> None:
        """How the script's own code, or a library's, asks for mini-batches."""
        run = self._run  # who holds this iterator instead would keep the pass from being left
        run.counted, run.looked_up, run.compared = calls(frame), looked_up_at(frame), compared_at(frame)
        run.by_generator = bool(frame.f_code.co_flags & inspect.CO_GENERATOR)
        self._engine = engine_epochs(frame, run.loader, lambda: run.inside)


def calls(frame: FrameType) -> bool:
    """Whether a frame is at a call, as of `next`, and not at the head of a loop."""
    return "CALL" in dis.opname[frame.f_code.co_code[frame.f_lasti]]
