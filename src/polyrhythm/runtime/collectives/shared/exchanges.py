"""Sums and broadcasts in shared memory as collectives of a generation: under way while the caller computes, and never
raising.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from queue import Queue
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import ReduceOp

from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives.group_health import GroupHealth
from polyrhythm.runtime.collectives.nonraising_work import FOR_EVER, QuietWork
from polyrhythm.runtime.collectives.shared.buffers import Meanwhile
from polyrhythm.runtime.collectives.shared.kinds import Kind, is_vector, kind_of

if TYPE_CHECKING:
    Tensors = torch.futures.Future[list[Tensor]]

MemberExchange: TypeAlias = Callable[[Meanwhile], None]
"""What is done with all members' tensors, in the place of this one's."""


class MemberBuffers(Protocol):
    """One member's view of all: `SharedBuffers` on one host, a `Hierarchy` on several."""

    def add_up(self, vector: Tensor, kind: Kind, meanwhile: Meanwhile = None, lends: bool = False) -> None: ...
    def spread(self, vector: Tensor, source: int, meanwhile: Meanwhile = None) -> None: ...
    def end(self) -> None: ...
    def close(self) -> None: ...
    def forget_in_child(self) -> None: ...
    def note_mistake(self) -> None: ...
    @property
    def mistaken(self) -> bool: ...


class SharedWork(QuietWork):
    """An exchange under way in the place of one tensor; after a failure its content is undefined."""

    def __init__(self, tensors: list[Tensor], exchange: MemberExchange) -> None:
        super().__init__(tensors)
        self.exchange = exchange
        self._future: Tensors = torch.futures.Future()

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        """Until it is there, or the generation has failed. The limit is the group's own."""
        self.before_wait()
        self._future.wait()
        return True

    def get_future(self) -> "Tensors":
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def end(self) -> None:
        """Let everyone go on who waits; called once."""
        self._future.set_result(self._tensors)


class SharedExchanges:
    """Exchanges of a generation's members, in the order in which they were started."""

    def __init__(self, buffers: MemberBuffers, health: GroupHealth) -> None:
        self._buffers, self._health = buffers, health
        self._started: Queue[SharedWork | None] = Queue()
        self._thread: threading.Thread | None = None
        health.await_end(buffers)

    @property
    def mistaken(self) -> bool:
        """Whether a member of this host has found that members have called for different things, or not in time."""
        return self._buffers.mistaken

    def offer(self, name: str, tensors: list[Tensor], options: Any, lends: bool = False) -> "Offer | None":
        """The collective of that name, if it can be had in shared memory; all members answer the same.

        `lends` is as of `SharedBuffers.add_up`; members may differ in it.
        """
        if name not in ("allreduce", "broadcast") or not is_vector(tensors):
            return None
        vector = tensors[0].detach().view(-1)
        if name == "broadcast":
            spread = partial(self._buffers.spread, vector.view(torch.uint8), options.rootRank if options else 0)
            return Offer(self, tensors, spread)
        kind = kind_of(vector.dtype, options.reduceOp if options else ReduceOp.SUM)
        return Offer(self, tensors, partial(self._buffers.add_up, vector, kind, lends=lends)) if kind else None

    def start(self, tensors: list[Tensor], exchange: MemberExchange) -> SharedWork:
        """MemberExchange in a thread; at once if this is called there, by what was to follow another exchange."""
        work = SharedWork(tensors, exchange)
        if threading.current_thread() is self._thread:
            self._run_one(exchange)
            work.end()
            return work
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="polyrhythm-sums")
            self._thread.start()
        self._started.put(work)
        return work

    def run_now(self, exchange: MemberExchange, meanwhile: Meanwhile = None) -> None:
        """MemberExchange here, which is sooner where there is nothing to compute; `meanwhile` is called if all is well.

        What was started before comes first, with all that follows it there, so that the order is that of all members.
        """
        if threading.current_thread() is not self._thread:
            self._started.join()
        self._run_one(exchange, meanwhile)

    def close(self) -> None:
        self._health.end(self._buffers)
        if self._thread is not None:
            self._started.put(None)
            # A last reference may go away in the thread itself.
            if threading.current_thread() is not self._thread:
                self._thread.join()
        self._buffers.close()

    def forget_in_child(self) -> None:
        """After a fork: close the child's copies of the connections, which would hide the parent's death."""
        self._thread = None
        self._buffers.forget_in_child()

    def _run(self) -> None:
        while (started := self._started.get()) is not None:
            try:
                self._run_one(started.exchange)
            finally:
                started.end()
                self._started.task_done()
        self._started.task_done()

    def _run_one(self, exchange: MemberExchange, meanwhile: Meanwhile = None) -> None:
        if self._health.failure is not None:
            return
        try:
            exchange(meanwhile)
        except BaseException as error:  # whatever it is, nobody must wait for ever, or go on in the middle of a sum
            if isinstance(error, UsageError | TimeoutError):
                self._buffers.note_mistake()  # before the connections end: to the others this member is then only gone
            self._health.fail(f"the members' sum failed: {error}")
            if not isinstance(error, Exception):
                raise


@dataclass(frozen=True, slots=True)
class Offer:
    """A collective that can be had in shared memory: in a thread or here, as of `SharedExchanges`."""

    exchanges: SharedExchanges
    tensors: list[Tensor]
    exchange: MemberExchange

    def start(self) -> SharedWork:
        return self.exchanges.start(self.tensors, self.exchange)

    def run_now(self, meanwhile: Meanwhile = None) -> None:
        self.exchanges.run_now(self.exchange, meanwhile)
