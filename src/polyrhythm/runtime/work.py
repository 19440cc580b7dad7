"""Handles of collectives that never raise: a failed one is noted in its epoch and ends like a finished one.

An exception would come out of the user's ``loss.backward()`` and leave autograd half way. DistributedDataParallel
instead sees every bucket arrive, and whoever owns the group looks at the failure before the optimizer's step.
"""

from datetime import timedelta
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from polyrhythm.runtime.epoch import Verdict, first_line

if TYPE_CHECKING:
    Tensors = torch.futures.Future[list[torch.Tensor]]

FOR_EVER = timedelta()
"""How torch writes "no limit but the group's own"."""


class FinishedWork(dist.Work):
    """A collective that needed nobody: its tensors hold the result already."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._future: Tensors = torch.futures.Future(devices=sorted(devices, key=str))
        self._future.set_result(tensors)
        self._tensors = tensors

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        """Nothing to wait for."""
        return True

    def get_future(self) -> "Tensors":
        """A completed future of the tensors."""
        return self._future

    def is_completed(self) -> bool:
        """Always."""
        return True

    def is_success(self) -> bool:
        """Always."""
        return True

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._tensors


class GuardedWork(dist.Work):
    """A collective of an epoch whose failure ends the epoch, not the caller.

    Args:
        work: the handle of the epoch's backend.
        verdict: told of a failure.
        tensors: what the collective writes into; after a failure their content is undefined.
    """

    def __init__(self, work: dist.Work, verdict: Verdict, tensors: list[torch.Tensor]) -> None:
        super().__init__()
        self._work, self._verdict, self._tensors = work, verdict, tensors

    def wait(self, timeout: timedelta = FOR_EVER) -> bool:
        """Until the collective has finished or failed."""
        try:
            self._work.wait(timeout)
        except RuntimeError as error:
            self._verdict.fail(first_line(error))
        return True

    def get_future(self) -> "Tensors":
        """A future of the tensors, completed by the backend's thread: communication overlaps with the backward pass."""
        return self._work.get_future().then(self._arrived)

    def is_completed(self) -> bool:
        """Whether `wait` would return at once."""
        return self._work.is_completed()

    def is_success(self) -> bool:
        """True, as nothing is ever raised; see `Verdict.failure`."""
        return True

    def result(self) -> list[torch.Tensor]:
        """The tensors."""
        return self._tensors

    def synchronize(self) -> None:
        """Make the current CUDA stream wait for the collective."""
        self._work.synchronize()

    def _arrived(self, future: "Tensors") -> list[torch.Tensor]:
        try:
            future.value()
        except RuntimeError as error:
            self._verdict.fail(first_line(error))
        return self._tensors
