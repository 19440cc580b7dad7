"""A worker's side of checkpoints: it copies its replica between two steps, and a thread writes the copy."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn
from torch.optim import Optimizer

from polyrhythm.errors import UsageError
from polyrhythm.lines import say
from polyrhythm.runtime.checkpoint.folder import partial_of
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.checkpoint.replica_state import (
    VELOCITY,
    Keepable,
    ReplicaState,
    apply_kept,
    apply_model,
    apply_optimizer,
    capture,
    check_optimizer,
    overruled,
    read_state,
)
from polyrhythm.runtime.checkpoint.streams import capture_streams, restore_streams, stand_between


class VelocityHolder(Protocol):
    """Who has the outer optimizer's velocity; see `polyrhythm.runtime.collectives.model_averaging.Averager`."""

    velocity: Tensor | None


class ReplicaCheckpoints:
    """What a worker does for checkpoints: it writes some, and goes on from one.

    Args:
        model: the script's.
        optimizer: of that model.
        folder: of the checkpoints.
        tell: told what was written, in the thread that writes.
        says: whether it is this worker that says which of the script's settings a checkpoint overrules.

    Attributes:
        kept: what is kept beside model and optimizer, by name.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        folder: str,
        tell: Callable[[Saved], None],
        says: bool,
    ) -> None:
        self._model, self._optimizer = model, optimizer
        self._folder, self._tell, self._says = Path(folder), tell, says
        self._writing: threading.Thread | None = None
        self._read: ReplicaState | None = None
        self._where = ""
        self._lost: set[str] = set()
        self._streams, self._between = b"", True
        self.kept: dict[str, Keepable] = {}

    def save(self, number: int, velocity: Tensor | None) -> None:
        """Copy the replica as it is, and write the copy while the script goes on."""
        self.wait()
        try:
            state = capture(self._model, self._optimizer, velocity, self.kept)
        except UsageError as error:
            self._tell(Saved(number, trouble=str(error)))
            return
        say(*(line for line in state.lost if line not in self._lost))
        self._lost |= {*state.lost}
        self._writing = threading.Thread(target=self._write, args=(number, state), name="polyrhythm-checkpoint")
        self._writing.start()

    def wait(self) -> None:
        if self._writing is not None:
            self._writing.join()
            self._writing = None

    def close(self, failed: bool) -> None:
        """The session is over; `failed` says that something else will be told of it."""
        self.wait()
        if self._read is not None and self._says and not failed:
            say(f"{self._where} is of an epoch that the script has not come to, so its optimizer did not get its state")

    def read(self, path: str) -> None:
        """Go on from this checkpoint: the model has it at once, the rest comes when the job goes on."""
        self._read, self._where = read_state(Path(path)), f"checkpoint {path}"
        apply_model(self._read, self._model, self._where)
        check_optimizer(self._read, self._optimizer, self._where)

    def go_on(self, holder: Callable[[], VelocityHolder], streams: bytes) -> None:
        """A phase begins. If the job goes on with it, whatever the script has done meanwhile is undone."""
        self._streams, read, self._read = streams, self._read, None
        if streams and stand_between(streams):
            self._restore()
        if read is None:
            return
        apply_model(read, self._model, self._where)
        if self._says:
            say(*overruled(read, self._optimizer, self._where))
        apply_optimizer(read, self._model, self._optimizer)
        apply_kept(read, self.kept)
        if VELOCITY in read.optimizer:
            holder().velocity = read.optimizer[VELOCITY]

    def drew(self, more: bool) -> None:
        """A mini-batch is fetched: from here on random numbers are those of the job that goes on. Or there is none."""
        self._between = not more
        if more and self._streams:
            self._restore()

    def _restore(self) -> None:
        restore_streams(self._streams)
        self._streams = b""

    def streams(self) -> bytes:
        """Where this process's random streams stand."""
        return capture_streams(self._between)

    def _write(self, number: int, state: ReplicaState) -> None:
        try:
            self._tell(Saved(number, state.write(partial_of(self._folder, number))))
        except OSError as error:
            self._tell(Saved(number, trouble=error.strerror or str(error)))
        except Exception as error:  # whoever waits for this checkpoint must hear of it
            self._tell(Saved(number, trouble=str(error) or type(error).__name__))
