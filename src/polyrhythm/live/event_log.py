"""What happens to a job as a file of JSON lines: one `JobEvent` a line."""

from collections.abc import Callable, Iterable
from typing import TextIO

import msgspec

from polyrhythm.lines import say
from polyrhythm.live.model import JobView
from polyrhythm.runtime.wire.control_protocol import JobEvent, Status

SCHEMA = msgspec.json.schema(JobEvent)
"""JSON schema of a line."""


class EventLog:
    """Appends to a file. One that cannot be written is given up with one line: the job goes on."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: TextIO | None = None
        self._try(self._open)

    def see(self, status: Status, view: JobView, events: Iterable[JobEvent]) -> None:
        """Write the events that are new."""
        lines = "".join(msgspec.json.encode(event).decode() + "\n" for event in events)
        if lines and self._file is not None:
            self._try(lambda: self._append(lines))

    def close(self) -> None:
        if self._file is not None:
            self._try(self._file.close)

    def _open(self) -> None:
        self._file = open(self._path, "a", encoding="utf-8")  # noqa: SIM115

    def _append(self, lines: str) -> None:
        assert self._file is not None
        self._file.write(lines)
        self._file.flush()

    def _try(self, act: Callable[[], object]) -> None:
        try:
            act()
        except OSError as error:
            self._file = None
            say(f"cannot write events to {self._path}: {error.strerror}")
