"""Sums over buffers as collectives of a generation: under way while the caller computes, and never raising."""

import threading
from collections.abc import Callable
from datetime import timedelta
from queue import Queue
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from polyrhythm.runtime.collectives.group_health import GroupHealth
from polyrhythm.runtime.collectives.nonraising_work import FOR_EVER, QuietWork
from polyrhythm.runtime.collectives.shm_allreduce import SharedBuffers

if TYPE_CHECKING:
    Tensors = torch.futures.Future[list[Tensor]]


class SharedSum(QuietWork):
    """A sum under way in the place of one tensor; after a failure its content is undefined."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__(tensors)
        self._future: Tensors = torch.futures.Future()

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        """Until it is there, or the generation has failed. The limit is the group's own."""
        self._future.wait()
        return True

    def get_future(self) -> "Tensors":
        return self._future

    def is_completed(self) -> bool:
        return self._future.done()

    def end(self) -> None:
        """Let everyone go on who waits; called once."""
        self._future.set_result(self._tensors)


class SharedSums:
    """Sums of a generation's members, in the order in which they were started.

    Args:
        buffers: this member's view of them.
        health: told of a failure; it ends what is under way when the generation fails.
    """

    def __init__(self, buffers: SharedBuffers, health: GroupHealth) -> None:
        self._buffers, self._health = buffers, health
        self._started: Queue[SharedSum | None] = Queue()
        self._thread: threading.Thread | None = None
        health.await_end(buffers)

    def start(self, tensors: list[Tensor]) -> SharedSum:
        """Sum up in a thread; at once if this is called there, by what was to follow another sum."""
        work = SharedSum(tensors)
        if threading.current_thread() is self._thread:
            self._add(tensors[0])
            work.end()
            return work
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="polyrhythm-sums")
            self._thread.start()
        self._started.put(work)
        return work

    def sum_now(self, tensors: list[Tensor], meanwhile: Callable[[], None] | None = None) -> None:
        """Sum up here, which is sooner where there is nothing to compute; `meanwhile` is called if all is well.

        What was started before comes first, with all that follows it there, so that the order is that of all members.
        """
        if threading.current_thread() is not self._thread:
            self._started.join()
        self._add(tensors[0], meanwhile)

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
        self._buffers.close()

    def _run(self) -> None:
        while (started := self._started.get()) is not None:
            try:
                self._add(started.result()[0])
            finally:
                started.end()
                self._started.task_done()
        self._started.task_done()

    def _add(self, tensor: Tensor, meanwhile: Callable[[], None] | None = None) -> None:
        if self._health.failure is not None:
            return
        try:
            self._buffers.add_up(tensor.detach().view(-1), meanwhile)
        except BaseException as error:  # whatever it is, nobody must wait for ever, or go on in the middle of a sum
            self._health.fail(f"the members' sum failed: {error}")
            if not isinstance(error, Exception):
                raise
