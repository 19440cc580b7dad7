"""Ranks that would wait for each other for ever: one before or at the end of an epoch, one in a script's collective.

The first waits until all come to the epoch, the second until all come to its collective. Where all have the same
collectives, the first comes to no later one before the second comes to the epoch.
"""

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from types import FrameType
from typing import Any, NamedTuple

import torch.distributed as dist
from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.script.notices import is_script, shown
from polyrhythm.runtime.script.script_group import ScriptGroup
from polyrhythm.runtime.worker.worker import Worker

LOOK_S = 1.0

LOOKS = 5
"""Of these in a row find a rank waiting for the same before that counts."""

EPOCH, COLLECTIVE = "epoch", "collective"

SAID = "waits-said"


class Wait(NamedTuple):
    """What a rank waits for: after how many collectives of all ranks, where, and for how many looks it has."""

    what: str
    begun: int
    place: str
    looks: int


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
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def launched(self, work: dist.Work) -> None:
        """The script has begun a collective of all ranks."""
        self._begun += 1
        self._work = weakref.ref(work)

    def watch(self, worker: Worker, aligned: Callable[[], bool]) -> None:
        """A session begins; `aligned` says whether all ranks have the same collectives."""
        group = dist.group.WORLD
        if not isinstance(group, ScriptGroup) or group.size() == 1:
            return
        worker.begin_epoch = self._at_epoch(worker.begin_epoch)  # type: ignore[method-assign]
        worker.end_epoch = self._at_epoch(worker.end_epoch)  # type: ignore[method-assign]
        self._aligned = aligned
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, args=(group,), daemon=True, name="polyrhythm-stalls")
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

    def _run(self, group: ScriptGroup) -> None:
        last: Wait | None = None
        known: dict[int, Wait] = {}
        while not self._stopped.wait(LOOK_S):
            try:
                mine = self._waits()
                if mine is not None and last is not None and last[:3] == mine[:3]:
                    mine = mine._replace(looks=last.looks + 1)
                    known = self._look(group.store, range(group.size()), mine, known)
            except RuntimeError:  # the job ends, and its store or group before this thread
                return
            last = mine

    def _waits(self) -> Wait | None:
        work = None if self._work is None else self._work()
        what = EPOCH if self._in_epoch else COLLECTIVE
        if not self._aligned() or (what == COLLECTIVE and (work is None or work.is_completed())):
            return None
        return Wait(what, self._begun, script_place(), 0)

    def _look(self, store: Store, ranks: range, mine: Wait, known: Mapping[int, Wait]) -> dict[int, Wait]:
        """Tell the others of this rank's wait, and see how they have waited since this one has looked last."""
        store.set(key(self.rank), ":".join(map(str, reversed(mine))))
        now = {rank: wait_of(store.get(key(rank)).decode()) for rank in ranks if store.check([key(rank)])}
        said = stall({rank: wait for rank, wait in now.items() if lasts(wait, known.get(rank))}, self.rank)
        if said or store.check([SAID]):
            self._end(store, said or store.get(SAID).decode(), [*now])
        return now

    def _end(self, store: Store, said: str, waiting: list[int]) -> None:
        """All who wait end at once, so that none is left to go on alone."""
        store.set(SAID, said)
        store.set(f"{SAID}-{self.rank}", said)
        with suppress(RuntimeError):
            store.wait([f"{SAID}-{rank}" for rank in waiting], timedelta(seconds=3 * LOOK_S))
        self.ended(said)


def key(rank: int) -> str:
    return f"waits-{rank}"


def wait_of(word: str) -> Wait:
    """
    >>> wait_of("7:a.py:1:3:epoch")
    Wait(what='epoch', begun=3, place='a.py:1', looks=7)
    """
    looks, rest = word.split(":", 1)
    place, begun, what = rest.rsplit(":", 2)
    return Wait(what, int(begun), place, int(looks))


def lasts(wait: Wait, before: Wait | None) -> bool:
    """Whether a rank has gone on waiting for the same since it was looked at before."""
    return before is not None and before[:3] == wait[:3] and LOOKS <= before.looks < wait.looks


def stall(waits: Mapping[int, Wait], rank: int) -> str:
    """What is to be said if this rank and another one wait for each other; or nothing.

    >>> waits = {0: Wait(EPOCH, 3, "a.py:1", 5), 1: Wait(COLLECTIVE, 4, "a.py:2", 6)}
    >>> stall(waits, 0) == stall(waits, 1), stall({**waits, 0: Wait(EPOCH, 4, "a.py:1", 5)}, 0)
    (True, '')
    """
    for one, first in sorted(waits.items()):
        for other, second in sorted(waits.items()):
            stands = first.what == EPOCH and second.what == COLLECTIVE and first.begun < second.begun
            if stands and rank in (one, other):
                return (
                    f"{first.place}: rank {one} waits until all ranks begin or end an epoch, and rank {other} "
                    f"({second.place}) until all come to this collective; let all ranks read the training data, and as "
                    "many mini-batches of it, or read it by another loader"
                )
    return ""


def script_place() -> str:
    """The innermost line of the script in the main thread."""
    frame: FrameType | None = sys._current_frames().get(threading.main_thread().ident or 0)
    while frame is not None:
        if is_script(frame.f_code.co_filename):
            return shown(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back
    return "script"
