"""Ranks that would wait for each other for ever: one before or at the end of an epoch, one in a script's collective.

The first waits until all come to the epoch, the second until all come to its collective, or the first to a message
between the two. Where all have the same collectives, the first comes to no later one before the second comes to the
epoch. Collectives and waits of a script's other threads are not looked at, and messages that they are yet to send not
foreseen.
"""

import functools
import sys
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

import msgspec
import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.collectives.nonraising_work import QuietWork
from polyrhythm.runtime.script.notices import is_script, shown
from polyrhythm.runtime.script.script_group import ANYONE, ScriptGroup
from polyrhythm.runtime.worker.worker import Worker

LOOK_S = 1.0

LOOKS = 5
"""Of these in a row find a rank waiting for the same before that counts."""

EPOCH, COLLECTIVE, MESSAGE = "epoch", "collective", "message"

SAID = "waits-said"


class Wait(NamedTuple):
    """What a rank waits for, where, and for how many looks it has.

    It has come to so many collectives of all ranks, `begun`, or is at so many of the messages between it and the
    `other` rank; of those with each rank it has sent or asked for so many, `messages`.
    """

    what: str
    begun: int
    place: str
    looks: int
    other: int = ANYONE
    messages: tuple[tuple[int, int], ...] = ()


class AwaitedMessage(NamedTuple):
    """A message that the main thread waits for: the other rank, and its number among those with it."""

    work: weakref.ref[dist.Work]
    other: int
    number: int


class Stalls:
    """Looks now and then, from a thread, whether this rank waits, and for whom.

    Args:
        rank: of this worker.

    Attributes:
        ended: called with what is to be said when nobody can go on.
    """

    def __init__(self, rank: int) -> None:
        self.rank = rank
        self.ended: Callable[[str], None] = lambda _: None
        self._aligned: Callable[[], bool] = lambda: True
        self._begun, self._in_epoch = 0, False
        self._work: weakref.ref[dist.Work] | None = None
        self._messages: Counter[int] = Counter()
        self._awaited: AwaitedMessage | None = None
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def launched(self, work: dist.Work) -> None:
        """The script has begun a collective of all ranks."""
        if is_main():
            self._begun += 1
            self._work = weakref.ref(work)

    def messaged(self, work: dist.Work, other: int) -> None:
        """The script has begun to send to another rank, or to receive from it."""
        self._messages[other] += 1
        if isinstance(work, QuietWork):
            work.before_wait = functools.partial(
                self._await, AwaitedMessage(weakref.ref(work), other, self._messages[other])
            )

    def _await(self, awaited: AwaitedMessage) -> None:
        if is_main():
            self._awaited = awaited

    def watch(self, worker: Worker, aligned: Callable[[], bool]) -> None:
        """A session begins; `aligned` says whether all ranks have the same collectives."""
        group = dist.group.WORLD
        if not isinstance(group, ScriptGroup) or group.size() == 1:
            return
        worker.begin_epoch = self._at_epoch(worker.begin_epoch)  # type: ignore[method-assign]
        worker.end_epoch = self._at_epoch(worker.end_epoch)  # type: ignore[method-assign]
        self._aligned = aligned
        if self._thread is None:
            board = Board(group.store, self.rank, group.size())
            self._thread = threading.Thread(target=self._run, args=(board,), daemon=True, name="polyrhythm-stalls")
            self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _at_epoch(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            self._in_epoch = True
            try:
                return function(*args, **kwargs)
            finally:
                self._in_epoch = False

        return call

    def _run(self, board: "Board") -> None:
        last: Wait | None = None
        while not self._stopped.wait(LOOK_S):
            mine = self.waits()
            if mine is not None and last is not None and is_same(last, mine):
                mine = mine._replace(looks=last.looks + 1)
                try:
                    said = board.tell(mine)
                    if said:
                        board.end(said)
                except RuntimeError:  # the job ends, and its store or group before this thread
                    return
                if said:
                    self.ended(said)
            last = mine

    def waits(self) -> Wait | None:
        """What this rank waits for, if it does."""
        if not self._aligned():
            return None
        what, begun, other = EPOCH, self._begun, ANYONE
        if not self._in_epoch:
            if (awaited := self._awaited) is not None and is_under_way(awaited.work):
                what, begun, other = MESSAGE, awaited.number, awaited.other
            elif self._work is not None and is_under_way(self._work):
                what = COLLECTIVE
            else:
                return None
        return Wait(what, begun, script_place(), 0, other, tuple(self._messages.items()))


class Board:
    """What the ranks tell each other of their waits.

    Args:
        store: of all ranks.
        rank: of this worker.
        size: number of ranks.
    """

    def __init__(self, store: Store, rank: int, size: int) -> None:
        self._store: Any = store  # of which torch's stubs do not know everything
        self._rank, self._ranks = rank, range(size)
        self._known: dict[int, Wait] = {}
        """The waits at the latest look at all."""

    def tell(self, mine: Wait) -> str:
        """Tell the others of this rank's wait; what is to be said, if nobody can go on."""
        self._store.set(key(self._rank), msgspec.json.encode(mine).decode())
        if self._store.check([SAID]):
            return str(self._store.get(SAID).decode())
        if not is_due(mine.looks):
            return ""
        before, self._known = self._known, self._all()
        return stall({rank: wait for rank, wait in self._known.items() if lasts(wait, before.get(rank))}, self._rank)

    def _all(self) -> dict[int, Wait]:
        ranks, store = self._told, self._store
        keys = list(map(key, ranks))
        words = store.multi_get(keys) if store.has_extended_api() else map(store.get, keys)
        return {rank: msgspec.json.decode(word, type=Wait) for rank, word in zip(ranks, words, strict=True)}

    @property
    def _told(self) -> list[int]:
        """Ranks that have told of a wait."""
        if self._store.check(list(map(key, self._ranks))):
            return [*self._ranks]
        return [rank for rank in self._ranks if self._store.check([key(rank)])]

    def end(self, said: str) -> None:
        """All who wait end at once, so that none is left to go on alone."""
        self._store.set(SAID, said)
        self._store.set(f"{SAID}-{self._rank}", said)
        with suppress(RuntimeError):
            self._store.wait([f"{SAID}-{rank}" for rank in self._told], timedelta(seconds=3 * LOOK_S))


def key(rank: int) -> str:
    return f"waits-{rank}"


def is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


def is_under_way(work: weakref.ref[dist.Work]) -> bool:
    return (known := work()) is not None and not known.is_completed()


def is_due(looks: int) -> bool:
    """Whether a rank that has waited for so long looks at all others: who comes last soon does, the others ever less.

    >>> [looks for looks in range(40) if is_due(looks)]
    [5, 6, 7, 9, 13, 21, 37]
    """
    longer = looks - LOOKS
    return longer >= 0 and longer & (longer - 1) == 0


def is_same(one: Wait, other: Wait) -> bool:
    return one._replace(looks=0) == other._replace(looks=0)


def lasts(wait: Wait, before: Wait | None) -> bool:
    """Whether a rank has gone on waiting for the same since it was looked at before."""
    return before is not None and is_same(before, wait) and LOOKS <= before.looks < wait.looks


def stall(waits: Mapping[int, Wait], rank: int) -> str:
    """What is to be said if this rank and another one wait for each other; or nothing.

    >>> waits = {0: Wait(EPOCH, 3, "a.py:1", 5), 1: Wait(COLLECTIVE, 4, "a.py:2", 6)}
    >>> stall(waits, 0) == stall(waits, 1), stall({**waits, 0: Wait(EPOCH, 4, "a.py:1", 5)}, 0)
    (True, '')
    """
    for one, first in sorted(waits.items()):
        for other, second in sorted(waits.items()):
            if rank in (one, other) and (what := awaits(second, other, one, first)):
                return (
                    f"{first.place}: rank {one} waits until all ranks begin or end an epoch, and rank {other} "
                    f"({second.place}) until {what}; let all ranks read the training data, and as many mini-batches of "
                    "it, or read it by another loader"
                )
    return ""


def awaits(wait: Wait, rank: int, other: int, at_epoch: Wait) -> str:
    """Until when this rank waits for another one, which stands at an epoch; nothing, if it does not.

    >>> awaits(Wait(MESSAGE, 2, "a.py:2", 6, other=0), 1, 0, Wait(EPOCH, 3, "a.py:1", 5, messages=((1, 1),)))
    'rank 0 sends to it or receives from it'
    """
    if at_epoch.what != EPOCH:
        return ""
    if wait.what == COLLECTIVE and at_epoch.begun < wait.begun:
        return "all come to this collective"
    messages = dict(at_epoch.messages)
    if wait.what == MESSAGE and wait.other == other and messages.get(rank, 0) < wait.begun and ANYONE not in messages:
        return f"rank {other} sends to it or receives from it"
    return ""


def script_place() -> str:
    """The innermost line of the script in the main thread."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return "script"
