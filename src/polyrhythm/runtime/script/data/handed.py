"""What ranks tell each other of what they read.

One rank may read for all, and hand the data on by a collective within the loop, as Accelerate's dispatcher does. Only
that rank sees the data end, so none goes by this: all look at each collective whether they have left the loop.
"""

import time
from collections.abc import Callable
from types import FrameType

import torch.distributed as dist
from torch.nn.parallel import distributed

from polyrhythm.errors import GroupError
from polyrhythm.lines import say
from polyrhythm.runtime.script.data.step_loop import InnerLoop, standing
from polyrhythm.runtime.script.notices import script_line
from polyrhythm.runtime.script.script_group import ScriptGroup

READS_NOT = "reads not"

PATIENCE_S = 30.0
"""After which it is said for whom a rank waits; ranks without DistributedDataParallel may begin at different times."""

LIMIT_S = 300.0
"""After which nobody waits any more: those that are late may wait for this rank, and never make a step."""

SHORTEST_S, LONGEST_S = 0.001, 0.1
"""Pauses between two looks whether all have told; each is twice as long as that before."""


class HandedData:
    """Finds out, in the warm-up step, whether the mini-batches of all come from one rank.

    Args:
        training: number of the training; what ranks tell each other of is theirs in it.
    """

    def __init__(self, training: int) -> None:
        self._key = f"training-{training}-rank-"
        self._loop = InnerLoop()
        self._source: int | None = None
        self._told = False
        self._agreed: bool | None = None
        self._words: list[str] | None = None
        """What each rank has told; nothing if one has not."""

    def collective(self, source: int | None, frame: FrameType) -> None:
        """The script has come to one from this frame; all get what `source` has, if that is one rank."""
        if source is not None and self._agreed is not False and not within_wrapper(frame):
            self._source = source
            self._loop.reads(frame)

    def stepped(self, frame: FrameType, reads: Callable[[], str]) -> None:
        """A step is made from this frame; what this rank reads for it, which is asked once."""
        if self._source is not None and self._agreed is not False:
            self._loop.stepped(frame)
        if not self._told and isinstance(group := dist.group.WORLD, ScriptGroup):
            self._told = True
            group.store.set(f"{self._key}{group.rank()}", reads())

    @property
    def agreed(self) -> bool:
        """Whether it is so; asked after the warm-up step, in which all ranks come to the same answer."""
        if self._agreed is None:
            self._agreed = self._told and self._loop.found and self._only_source_reads()
        return self._agreed

    @property
    def differs(self) -> bool:
        """Whether some ranks read loaders and others none, or the job can deal out what some read only."""
        return len({each.partition(":")[0] for each in self._all_words()}) > 1

    @property
    def some_only(self) -> bool:
        """Whether some ranks read loaders, and others none."""
        return self.differs and READS_NOT in self._all_words()

    @property
    def even(self) -> bool:
        """Whether all read as many mini-batches, as far as their loaders say."""
        words = self._all_words()
        return len(set(words)) == 1 and "None" not in words[0]

    def left(self, frame: FrameType) -> bool:
        """Whether this frame stands outside of the loop in which the mini-batches are handed on."""
        return bool(self._agreed) and self._loop.left(frame)

    def _only_source_reads(self) -> bool:
        words = self._all_words()
        return [rank for rank, each in enumerate(words) if each != READS_NOT] == [self._source]

    def _all_words(self) -> list[str]:
        if self._words is None:
            self._words = self._ask() if self._told else []
        return self._words

    def _ask(self) -> list[str]:
        group = dist.group.WORLD
        assert isinstance(group, ScriptGroup), "this rank has told the others in it"
        return told_by_all(group, self._key)


def told_by_all(group: ScriptGroup, key: str) -> list[str]:
    """What each rank has told under this key and its number; nothing if one has not."""
    keys = [f"{key}{rank}" for rank in range(group.size())]
    return [group.store.get(each).decode() for each in keys] if all_told(group, keys) else []


def all_told(group: ScriptGroup, keys: list[str]) -> bool:
    """Whether all ranks say so, as long as none is lost, and within some minutes or the limit of a collective."""
    begun_s, pause_s, said = time.monotonic(), SHORTEST_S, False
    limit_s = min(LIMIT_S, group.timeout.total_seconds())
    while not group.store.check(keys):
        if group.failure is not None:
            return False
        waited_s = time.monotonic() - begun_s
        if waited_s > limit_s:
            raise GroupError(f"not all ranks have ended the first step within {limit_s:g} s of this one")
        if waited_s > PATIENCE_S and not said:
            said = True
            tell_late(group, keys, limit_s)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_S)
    return True


def tell_late(group: ScriptGroup, keys: list[str], limit_s: float) -> None:
    """Say for whom all others wait, as the first of these."""
    late = [rank for rank, key in enumerate(keys) if not group.store.check([key])]
    if group.rank() == min(set(range(len(keys))) - {*late}, default=0):
        waits = f"rank {group.rank()} waits up to {limit_s:g} s until all have made their first step"
        say(f"{script_line()}: {waits}; {late} have not")


def within_wrapper(frame: FrameType) -> bool:
    """Whether it is DistributedDataParallel that hands on parameters or buffers."""
    return any(code.co_filename == distributed.__file__ for code, _ in standing(frame))
