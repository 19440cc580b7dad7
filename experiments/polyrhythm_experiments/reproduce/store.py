"""Finished pieces of work, one JSON file each, so that a reproduction that was killed goes on where it stood."""

import re
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from polyrhythm import __version__
from polyrhythm.errors import UsageError
from polyrhythm.telemetry.files import put_whole

T = TypeVar("T")


class ResultStore:
    """A folder of results by what they were made from.

    What is remembered belongs to this version of Polyrhythm; whoever changes its code starts from an empty folder.

    Example:
        >>> import tempfile
        >>> store = ResultStore(Path(tempfile.mkdtemp()))
        >>> store.remember("square", {"of": 3}, lambda: 9, int), store.remember("square", {"of": 3}, lambda: 0, int)
        (9, 9)
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UsageError(f"--out {str(folder)!r} cannot be made: {error.strerror}") from error

    def remember(self, name: str, made_from: Any, make: Callable[[], T], kind: type[T]) -> T:
        """What `make` gives, made once.

        Args:
            name: for the eye.
            made_from: all that the result depends on, as values that JSON has.
            make: the work.
            kind: type of the result, to read it back as.
        """
        found = self.find(name, made_from, kind)
        return found if found is not None else self.keep(name, made_from, make())

    def find(self, name: str, made_from: Any, kind: type[T]) -> T | None:
        """What is remembered; None if there is nothing, or what is there cannot be read as `kind`."""
        try:
            text = self.path(name, made_from).read_bytes()
            return msgspec.convert(msgspec.json.decode(text)["result"], kind, str_keys=True)
        except (OSError, msgspec.MsgspecError, KeyError, TypeError):
            return None

    def keep(self, name: str, made_from: Any, result: T) -> T:
        """Write a result so that a reader sees all of it or nothing."""
        with put_whole(self.path(name, made_from)) as aside:
            aside.write_bytes(msgspec.json.encode({"made_from": made_from, "result": result}))
        return result

    def path(self, name: str, made_from: Any) -> Path:
        digest = sha256(msgspec.json.encode((__version__, name, made_from), order="deterministic")).hexdigest()[:16]
        return self.folder / f"{re.sub(r'[^A-Za-z0-9._-]+', '-', name)[:80]}-{digest}.json"
