"""Handles of collectives that never raise: a failed one is noted in its generation and ends like a finished one.

An exception would come out of the user's ``loss.backward()`` and leave autograd half way. DistributedDataParallel
instead sees every bucket arrive, and whoever owns the group looks at the failure before the optimizer's step.
"""

import sys
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.autograd import Variable
from torch.autograd.graph import _engine_run_backward

from polyrhythm.runtime.collectives.group_health import GroupHealth, first_line

if TYPE_CHECKING:
    Tensors = torch.futures.Future[list[torch.Tensor]]

FOR_EVER = timedelta()
"""How torch writes "no limit but the group's own"."""

SLICE = timedelta(seconds=0.1)
"""How often a waiting thread looks whether the generation has failed, should the operation itself not end then."""


class QuietWork(dist.Work):
    """A handle that reports success whatever happens; see `GroupHealth.failure`.

    Args:
        tensors: what the collective writes into; after a failure their content is undefined.

    Attributes:
        before_wait: called by whoever is about to wait for what the backend does, or a collective in shared memory.
    """

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._tensors = tensors
        self.before_wait: Callable[[], None] = lambda: None

    def is_success(self) -> bool:
        # True, as nothing is ever raised.
        return True

    def result(self) -> list[torch.Tensor]:
        return self._tensors


class FinishedWork(QuietWork):
    """A collective that needed nobody: its tensors hold the result already."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__(tensors)
        devices = {tensor.device for tensor in tensors} if tensors[0].is_cuda else ()
        self._future: Tensors = torch.futures.Future(devices=sorted(devices, key=str))
        self._future.set_result(tensors)

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        return True

    def get_future(self) -> "Tensors":
        return self._future

    def is_completed(self) -> bool:
        return True


class GuardedWork(QuietWork):
    """A collective on CPU tensors whose failure ends the generation, not the caller.

    It ends with the backend's operation or with the generation, whichever comes first: gloo may miss that a connection
    has closed, and then waits for its own limit (seen in 1 of 120 operations that began as a member left).

    Args:
        work: the backend's handle.
        health: told of a failure, and tells of one.
        tensors: what the collective writes into; after a failure their content is undefined.
        operation: the backend's future.
    """

    def __init__(self, work: dist.Work, health: GroupHealth, tensors: list[torch.Tensor], operation: "Tensors") -> None:
        super().__init__(tensors)
        self._work, self._health, self._operation = work, health, operation
        self._future: Tensors | None = None
        self._at_end = False

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        """Until the collective has finished or failed. The limit is the group's own."""
        self.before_wait()
        wait_for(self._work, self._health, self._tensors)
        if self._future is not None and not self._at_end:
            self._future.wait()
        return True

    def get_future(self) -> "Tensors":
        """A future of the tensors: communication overlaps with the backward pass.

        Where the backward pass itself asks, for torch's reducer, it is completed at its end and here, before the
        reducer looks at it; at once if it asks at its end, as for a static graph in the first step. Otherwise it is
        completed by the backend's thread, which needs the interpreter meanwhile.
        """
        if self._future is None:
            self._future = torch.futures.Future()
            self._at_end = asked_by_backward()
            if self._at_end and torch._C._current_autograd_node() is None:
                self._finish()
            elif self._at_end:
                Variable._execution_engine.queue_callback(self._finish)
            else:
                self._health.await_end(self)
                self._operation.add_done_callback(self._arrived)
        return self._future

    def is_completed(self) -> bool:
        return self._health.failure is not None or self._work.is_completed()

    def end(self) -> None:
        """Let everyone go on who waits for the future; called once."""
        assert self._future is not None
        self._future.set_result(self._tensors)

    def _finish(self) -> None:
        wait_for(self._work, self._health, self._tensors)
        self.end()

    def _arrived(self, operation: "Tensors") -> None:
        """The backend's operation is over: in one of its threads."""
        judge(operation.value, self._health)
        self._health.end(self)


class WaitedWork(QuietWork):
    """A collective that ends when the backend says so.

    On CUDA tensors that is in the order of the stream, or when the communicator is aborted. gloo has a few operations
    without a future, such as receiving, which a limit on waiting would end.

    Attributes:
        has_come: whether it was waited for, and has not failed.
    """

    def __init__(
        self, work: dist.Work, health: GroupHealth, tensors: list[torch.Tensor], operation: "Tensors | None" = None
    ) -> None:
        super().__init__(tensors)
        self._work, self._health, self._operation = work, health, operation
        self.has_come = False

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        """Until the collective has finished or failed; on CUDA the current stream waits."""
        self.before_wait()
        try:
            self._work.wait(timeout)
            self.has_come = True
        except RuntimeError as error:
            self._health.fail(first_line(error))
        return True

    def get_future(self) -> "Tensors":
        if self._operation is not None:  # on CUDA: complete with its launch, so that nothing is left to be judged
            return self._operation
        return self._work.get_future().then(self._arrived)

    def is_completed(self) -> bool:
        return self._work.is_completed()

    def synchronize(self) -> None:
        self.wait()

    def _source_rank(self) -> int:
        return self._work._source_rank()

    def _arrived(self, future: "Tensors") -> list[torch.Tensor]:
        try:
            future.value()
        except RuntimeError as error:
            self._health.fail(first_line(error))
        return self._tensors


def asked_by_backward() -> bool:
    """Whether what has called the caller of this is a backward pass, in the thread in which it was begun.

    Whoever asks in Python, such as a hook of the script, has a frame of its own there, and may wait at once.
    """
    try:
        return sys._getframe(2).f_code is _engine_run_backward.__code__
    except ValueError:  # a thread of the engine's own
        return False


def judge(result: Callable[[], object], health: GroupHealth) -> None:
    try:
        result()
    except RuntimeError as error:
        health.fail(first_line(error))


def wait_for(work: dist.Work, health: GroupHealth, tensors: list[torch.Tensor]) -> dist.Work:
    """A collective on CPU tensors that has ended: the backend's own handle, unless it or the generation has failed.

    Where there is nothing to compute meanwhile, this saves what wakes a waiting thread up, a callback in one of gloo's
    threads, which needs the interpreter's lock; and a future made in Python, whose value torch pickles to look for
    tensors.
    """
    ended = False
    while health.failure is None:
        try:
            work.wait(SLICE)
        except RuntimeError as error:  # the operation's own, if it had ended before
            if ended:
                health.fail(first_line(error))
            ended = work.is_completed()
        else:
            return work
    return FinishedWork(tensors)


def guard(work: dist.Work, health: GroupHealth, tensors: list[torch.Tensor]) -> dist.Work:
    try:
        operation = work.get_future()
    except RuntimeError:
        return WaitedWork(work, health, tensors)
    return (WaitedWork if tensors[0].is_cuda else GuardedWork)(work, health, tensors, operation)
