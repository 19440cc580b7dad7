"""The figures that a script reports itself, or tells its TensorBoard writer."""

import contextlib
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.shard_protocol import MOST_FIGURE_NAME, MOST_FIGURES


class ScriptFigures:
    """What the script reports since it was last taken, the latest of each name.

    Example:
        >>> import torch
        >>> figures = ScriptFigures()
        >>> figures.tell({"accuracy": 0.5, "loss": torch.tensor(2.0)})
        >>> figures.take(), figures.take()
        ({'accuracy': 0.5, 'loss': 2.0}, {})
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[str] = set()
        self._latest: dict[str, float] = {}

    def tell(self, values: Mapping[str, Any]) -> None:
        """Report values.

        Raises:
            UsageError: for one that is no number, a name that cannot be, or too many names.
        """
        read = {checked_name(name): number(name, value) for name, value in values.items()}
        if len(self._names | read.keys()) > MOST_FIGURES:
            raise UsageError(f"log takes {MOST_FIGURES} names at most; {next(iter(read))!r} is one too many")
        with self._lock:
            self._names |= read.keys()
            self._latest |= read

    def hear(self, name: str, value: Any) -> None:
        """Report one value that was meant for somebody else, if it can be."""
        with contextlib.suppress(UsageError):
            self.tell({str(name)[-MOST_FIGURE_NAME:]: value})

    def take(self) -> dict[str, float]:
        with self._lock:
            taken, self._latest = self._latest, {}
        return taken


def checked_name(name: str) -> str:
    if not isinstance(name, str) or not 0 < len(name) <= MOST_FIGURE_NAME:
        raise UsageError(f"a name for log must be a text of 1 to {MOST_FIGURE_NAME} characters but got {name!r}")
    return name


def number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError, RuntimeError):
        raise UsageError(f"{name} must be a number for log but got {value!r}") from None


WRITERS = ("torch.utils.tensorboard.writer", "tensorboardX.writer")
"""Modules whose `SummaryWriter` a script may use."""


class WriterEar:
    """Hears what a script tells its TensorBoard writer, of the modules that it has imported.

    Args:
        figures: gets it.
    """

    def __init__(self, figures: ScriptFigures) -> None:
        self._figures = figures
        modules = [sys.modules[name] for name in WRITERS if name in sys.modules]
        self._originals = [(module.SummaryWriter, module.SummaryWriter.add_scalar) for module in modules]
        for writer, original in self._originals:
            writer.add_scalar = self._hearing(original)

    def close(self) -> None:
        """Leave the writers as they were."""
        for writer, original in self._originals:
            writer.add_scalar = original

    def _hearing(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def add_scalar(writer: Any, tag: str, scalar_value: Any, *args: Any, **kwargs: Any) -> Any:
            self._figures.hear(tag, scalar_value)
            return original(writer, tag, scalar_value, *args, **kwargs)

        return add_scalar
