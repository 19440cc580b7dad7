"""What happens to a job as TensorBoard reads it: curves over the samples of the job, switches and deaths as text."""

from collections.abc import Callable, Iterable
from typing import Any

from polyrhythm.lines import say
from polyrhythm.live.model import JobView
from polyrhythm.runtime.wire.control_protocol import JobEvent, Status

TOLD = ("switch", "decision", "death", "left", "join", "rollback", "divergence", "straggler")
"""Kinds of event that are written as text."""


class TensorBoardLog:
    """Writes each look; what cannot be written is given up with one line."""

    def __init__(self, folder: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._folder = folder
        self._writer: Any = None
        self._samples = -1
        self._try(lambda: setattr(self, "_writer", SummaryWriter(folder, flush_secs=5)))

    def see(self, status: Status, view: JobView, events: Iterable[JobEvent]) -> None:
        """Write the curves if the job has moved, and what has happened."""
        if self._writer is None:
            return
        moved = view.samples != self._samples
        self._samples = view.samples
        scalars = figures(view) if moved else {}
        lines = [event for event in events if event.kind in TOLD]
        self._try(lambda: self._write(scalars, lines))

    def close(self) -> None:
        if self._writer is not None:
            self._try(self._writer.close)

    def _write(self, scalars: dict[str, float], lines: list[JobEvent]) -> None:
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, self._samples)
        for event in lines:
            self._writer.add_text(event.kind, event.text, self._samples)

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._writer = None
            say(f"cannot write to --tensorboard {self._folder}: {error.strerror}")


def figures(view: JobView) -> dict[str, float]:
    total = sum(worker.compute_s + worker.transfer_s + worker.wait_s for worker in view.workers)
    waits = sum(worker.wait_s for worker in view.workers)
    known = {
        "loss": view.loss,
        "samples_per_s": view.samples_per_s,
        "staleness": view.staleness,
        "lssr": view.lssr,
        "wait_share": waits / total if total else None,
        "stragglers": float(sum(worker.late is not None for worker in view.workers)),
        "workers": float(len(view.workers)),
    }
    reported = {f"script/{name}": value for name, value in view.figures.items()}
    return {**{name: value for name, value in known.items() if value is not None}, **reported}
