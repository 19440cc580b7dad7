"""The default group of an adapted script: a real one in every phase, for collectives at the end of its epochs.

Inside the loop workers may make steps of their own, and stand at different ones from then on. A reduction then gives
each its own value, as if all had the same, unless a gradient depends on it.
"""

import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import ReduceOp, Store

from polyrhythm.errors import GroupError
from polyrhythm.runtime.collectives.nonraising_work import FOR_EVER, FinishedWork, GuardedWork, QuietWork, WaitedWork
from polyrhythm.runtime.collectives.shared.exchanges import SharedWork
from polyrhythm.runtime.collectives.switchable_group import BETWEEN_TWO, SwitchGroup
from polyrhythm.runtime.script.notices import script_line

BACKEND = "polyrhythm_script"

FROM_ONE = ("broadcast", "scatter")
"""Collectives that give all ranks what one of them has."""

GATHERED = {"all_gather_object": "object_list", "gather_object": "object_gather_list"}
"""Functions of torch that gather objects, and what each calls the list for them."""

ANYONE = -1
"""In place of the rank from which something is received."""

MISTAKEN = "all ranks must call the same collectives with the same tensors, within the timeout of init_process_group"

FROM_GLOO = "gloo/"
"""In the messages of gloo's own errors, which name its file; those of torch about arguments do not."""

SHORTEST_S, LONGEST_S = 5e-5, 0.01
"""Pauses between two looks whether a collective is over; each is twice as long as that before."""

REMIND_S = 1.0


class ScriptGroup(SwitchGroup):
    """All ranks of the job, or some of them.

    Attributes:
        alone: told the name of each collective, what it writes into and whose values all get, if they get one rank's;
            whether this worker is to make it by itself.
        launched: given the handle of each that all make, and whether these are all ranks.
        messaged: given the handle of what is sent to another rank or received from it, and that rank, or `ANYONE`.
        lives_on: whether a worker trains on what it is handed, so that it cannot go on without.
        asked_backend: what the script has asked for; none: that of its default group.
    """

    alone: Callable[[str, list[Tensor], int | None], bool] = staticmethod(lambda *_: False)
    launched: Callable[[dist.Work, bool], None] = staticmethod(lambda *_: None)
    messaged: Callable[[dist.Work, int], None] = staticmethod(lambda *_: None)
    lives_on: Callable[[], bool] = staticmethod(lambda: False)
    asked_backend: str | None = None

    @property
    def _device_types(self) -> list[torch.device]:
        """As torch's own groups have it, where `torch.distributed.checkpoint` looks for one that it can use."""
        return [torch.device("cpu"), *([torch.device("cuda")] if torch.cuda.is_available() else [])]

    def _get_backend(self, device: torch.device) -> Any:
        """What torch would set limits of: none that it knows."""
        return self

    def _run(
        self,
        name: str,
        outputs: list[Tensor],
        fill: Callable[[], None] | None,
        *args: Any,
        opts: Any,
        lends: bool = False,
    ) -> Any:
        for_all = self.size() == dist.get_world_size()
        source = opts.rootRank if name in FROM_ONE else None
        if name in BETWEEN_TWO and self.failure is not None:
            raise lost(name, self.failure)
        self.check(name)
        if not ScriptGroup.alone(name, outputs, source if for_all else None):
            work = super()._run(name, outputs, fill, *args, opts=opts, lends=lends)
            if name in BETWEEN_TWO:
                other = ANYONE if name == "recv_anysource" else dist.get_global_rank(self, args[1])
                ScriptGroup.messaged(work, other)
                return work if name == "send" else AwaitedWork(work, self, name, outputs)
            ScriptGroup.launched(work, for_all)
            self.check(name)
            return AwaitedWork(work, self, name, outputs, source not in (None, self.rank()))
        if fill is not None:
            fill()
        elif hasattr(opts, "reduceOp"):
            reduce_alone(outputs, opts.reduceOp, self.size())
        return FinishedWork(outputs)

    def check(self, name: str) -> None:
        """Raise what the script has done wrong: nobody is lost, so no other generation comes in the place of this."""
        if self.generation is not None and self.generation.mistaken:
            raise GroupError(f"{script_line()}: {name} failed: {self.failure}; {MISTAKEN}")

    def _not_launched(self, error: RuntimeError) -> None:
        """As without a policy the script hears what is wrong with its arguments, and may call again.

        A message begins with gloo's look at the connection, which may have ended.
        """
        if not isinstance(error, dist.DistError) and FROM_GLOO not in str(error):
            raise error


class AwaitedWork(QuietWork):
    """A collective that the script waits for.

    Args:
        work: its handle.
        group: of the ranks.
        name: of the collective.
        tensors: what it writes into.
        brings: whether it brings what another rank has.
    """

    def __init__(
        self, work: dist.Work, group: ScriptGroup, name: str, tensors: list[Tensor], brings: bool = True
    ) -> None:
        super().__init__(tensors)
        self._work, self._group, self._name, self._brings = work, group, name, brings

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        """Until it is over.

        Raises:
            GroupError: if it has failed, and the script would go on with whatever is in the memory.
        """
        self._work.wait(timeout)
        self._group.check(self._name)
        if (failure := self._group.failure) and (gathers_objects() or (self._brings and self._is_needed)):
            raise lost(self._name, failure)
        return True

    @property
    def _is_needed(self) -> bool:
        return self._has_failed or ScriptGroup.lives_on() or receives_objects()

    @property
    def _has_failed(self) -> bool:
        """Whether it is a message, which without the one other rank is nothing, and has not come."""
        return self._name in BETWEEN_TWO and not (isinstance(self._work, WaitedWork) and self._work.has_come)

    def get_future(self) -> Any:
        return self._work.get_future()

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def synchronize(self) -> None:
        self._work.synchronize()

    def _source_rank(self) -> int:
        return self._work._source_rank()


def lost(name: str, failure: str) -> GroupError:
    """The error of what another rank takes part in, which it cannot any more."""
    if name == "send":
        return GroupError(f"{script_line()}: send reaches nobody: another rank is lost ({failure})")
    shown = name.removesuffix("_anysource")
    return GroupError(f"{script_line()}: {shown} brings nothing: what another rank has for it is lost ({failure})")


def receives_objects() -> bool:
    """Whether torch is about to read an object whose length it was to be told, from memory that nobody has written."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_name.endswith("_object_list"):
        frame = frame.f_back
    return frame is not None


def gathers_objects() -> bool:
    """Whether torch is about to read the objects of all ranks here, which those that only send theirs do not."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name not in GATHERED:
        frame = frame.f_back
    return frame is not None and frame.f_locals.get(GATHERED[frame.f_code.co_name]) is not None


def await_others(work: dist.Work, look: Callable[[], None], remind: Callable[[], None]) -> None:
    """Wait until a collective is over; `look` is called as long as it is not, and `remind` for each second of that."""
    pause_s, reminded_s = SHORTEST_S, time.monotonic()
    while not work.is_completed():
        look()
        if time.monotonic() - reminded_s > REMIND_S:
            reminded_s = time.monotonic()
            remind()
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_S)


def remind_while_waiting(work: dist.Work, look: Callable[[], None], remind: Callable[[], None]) -> None:
    """Have whoever waits for this collective in the main thread, and on the CPU, `await_others`."""
    if isinstance(work, GuardedWork | SharedWork) and threading.current_thread() is threading.main_thread():
        work.before_wait = partial(await_others, weakref.proxy(work), look, remind)


def reduce_alone(tensors: Iterable[Tensor], op: Any, size: int) -> None:
    """A reduction over so many workers that all have the same.

    >>> mine = torch.tensor([3.0])
    >>> reduce_alone([mine], ReduceOp.SUM, 2)
    >>> mine
    tensor([6.])
    """
    with torch.no_grad():
        for tensor in tensors:
            if op == ReduceOp.SUM and tensor.dtype != torch.bool:
                tensor.mul_(size)
            elif op == ReduceOp.PRODUCT:
                tensor.pow_(size)


def create(store: Store, rank: int, size: int, timeout: timedelta) -> ScriptGroup:
    """What `torch.distributed.init_process_group` calls."""
    group = ScriptGroup(store, rank, range(size), timeout)
    group.set_generation(range(size), "script-0", connect_timeout=timeout)
    return group


dist.Backend.register_backend(BACKEND, create, devices=["cpu", "cuda"])
