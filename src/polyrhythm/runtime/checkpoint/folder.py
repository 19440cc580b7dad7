"""A folder of checkpoints: each is written aside and renamed, the last ones are kept, and all are verified on reading.

DIR/checkpoint-000007/manifest            where the job stands; its first line is the digest of the rest
DIR/checkpoint-000007/model.safetensors   parameters and buffers
DIR/checkpoint-000007/optimizer.safetensors
DIR/.checkpoint-000008.partial/           is being written, or was when all was killed
"""

import fcntl
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import IO, NamedTuple

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.manifest import Manifest, decode_manifest, encode_manifest
from polyrhythm.runtime.checkpoint.tensor_file import mark_of

MANIFEST = "manifest"
LOCK = ".lock"
NAME = re.compile(r"checkpoint-(\d{6,})")
PARTIAL = re.compile(r"\.checkpoint-(\d{6,})\.partial")


class WholeCheckpoint(NamedTuple):
    path: Path
    manifest: Manifest


class CheckpointFolder:
    """The folder of one job."""

    def __init__(self, path: Path, keep: int) -> None:
        self.path, self._keep = path, keep
        self._lock = lock(path)

    def newest(self, tell: Callable[[str], None]) -> WholeCheckpoint | None:
        """The newest checkpoint that is whole; `tell` hears of those that are not."""
        numbers = self.numbers()
        for number in reversed(numbers):
            path = self.place(number)
            try:
                return WholeCheckpoint(path, verified(path))
            except (UsageError, OSError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                instead = "there is none before" if number == numbers[0] else "the one before is taken"
                tell(f"checkpoint {path} is refused, and {instead}: {reason}")
        return None

    def numbers(self) -> list[int]:
        """Of the checkpoints that are there, ascending."""
        names = (NAME.fullmatch(entry.name) for entry in self.path.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def place(self, number: int) -> Path:
        """Where a checkpoint stands once it is whole."""
        return self.path / f"checkpoint-{number:06d}"

    def hold(self) -> bool:
        """Whether somebody has removed the folder since it was held; then it is there again, and held."""
        if (self.path / LOCK).exists():
            return False
        anew = lock(self.path)
        self._lock.close()
        self._lock = anew
        return True

    def commit(self, manifest: Manifest) -> Path:
        """The tensors of a checkpoint are there: make it whole, and drop the oldest.

        Raises:
            OSError: if it cannot be written.
        """
        number = manifest.snapshot.number
        partial, place = partial_of(self.path, number), self.place(number)
        make_partial(partial)  # the tensors of a script are its own business
        with (partial / MANIFEST).open("wb") as stream:
            stream.write(encode_manifest(manifest))
            stream.flush()
            os.fsync(stream.fileno())
        sync(partial)
        partial.rename(place)
        sync(self.path)
        self._prune()
        return place

    def discard(self, number: int) -> None:
        shutil.rmtree(partial_of(self.path, number), ignore_errors=True)

    def clean(self) -> int:
        """Remove what was being written when the job, or only its coordinator, was killed; the highest number of it."""
        highest = 0
        for entry in self.path.iterdir():
            if found := PARTIAL.fullmatch(entry.name):
                shutil.rmtree(entry, ignore_errors=True)
                highest = max(highest, int(found[1]))
        return highest

    def close(self) -> None:
        self._lock.close()

    def _prune(self) -> None:
        for number in self.numbers()[: -self._keep]:
            shutil.rmtree(self.place(number), ignore_errors=True)


def make_partial(partial: Path) -> None:
    """The folder of a checkpoint that is begun; and the job's own again, if that was removed while the job runs.

    Raises:
        OSError: if there can be none.
    """
    try:
        partial.mkdir(exist_ok=True)
    except FileNotFoundError:
        partial.parent.mkdir(exist_ok=True)
        partial.mkdir(exist_ok=True)


def partial_of(folder: Path, number: int) -> Path:
    return folder / f".checkpoint-{number:06d}.partial"


def verified(path: Path) -> Manifest:
    """The manifest of a checkpoint all of whose files are as they were written.

    Raises:
        OSError: if one cannot be read.
    """
    manifest = decode_manifest((path / MANIFEST).read_bytes())
    for name, mark in manifest.files.items():
        found = mark_of(path / Path(name).name)
        if found != mark:
            what = "is changed" if found.bytes == mark.bytes else f"has {found.bytes} bytes of {mark.bytes}"
            raise UsageError(f"{name} {what}")
    return manifest


def lock(path: Path) -> IO[bytes]:
    """Hold the folder until the file is closed, or this process ends however it does."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = (path / LOCK).open("ab")
    except OSError as error:
        raise UsageError(f"checkpoints cannot be kept in {path}: {error.strerror}; give another --checkpoint") from None
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        held.close()
        raise UsageError(f"another job keeps its checkpoints in {path}; give another --checkpoint") from None
    return held


def sync(folder: Path) -> None:
    """Wait until the disk has the folder's entries."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
