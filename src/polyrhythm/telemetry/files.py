"""Whether files and folders can be read and written, found out before anything runs that would do it; and a file
written as a whole.
"""

import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from polyrhythm.errors import UsageError


def make_folder(option: str, path: Path) -> None:
    """The folder is there, and files can be written in it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"{option} {str(path)!r} cannot be made: {error.strerror}") from error
    try:
        try_to_write(path / ".writable")
    except OSError as error:
        raise UsageError(f"{option} {str(path)!r} cannot be written in: {error.strerror}") from error


def check_data(folder: str | None) -> None:
    """Whether the folder of --data is there, if one is given; asked before anything that takes long."""
    if folder is not None and not (folder and Path(folder).is_dir()):
        raise UsageError(f"--data {folder!r} is no folder; give the one with the data set's parquet files")


def check_writable(option: str, path: Path) -> None:
    """The file can be written; what is in it now stays."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try_to_write(path)
    except OSError as error:
        raise UsageError(f"{option} {str(path)!r} cannot be written: {error.strerror}") from error


def write_whole(path: Path, data: bytes) -> None:
    """Write a file so that it is there as a whole or as it was, also when the disk is full or the process is killed.

    A link is written through, as /dev/stdout may be one to a file that more is written to; so is a pipe or a device,
    and a file whose folder takes no others.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        path.write_bytes(data)
        return
    try:
        with put_whole(path) as aside:
            aside.write_bytes(data)
    except PermissionError:
        path.write_bytes(data)


@contextmanager
def put_whole(path: Path) -> Iterator[Path]:
    """A block that writes a file aside, which takes the place of `path` at its end, and is gone if it fails."""
    aside = path.with_name(f".polyrhythm-{threading.get_native_id()}.partial")
    try:
        yield aside
        if path.exists():
            shutil.copymode(path, aside)
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)


def try_to_write(path: Path) -> None:
    """Append nothing to a file, and leave none that was not there."""
    existed = path.exists()
    if existed and not path.is_file() and not path.is_dir():
        return  # a pipe, whose reader would take this for the end
    with open(path, "ab"):
        pass
    if not existed:
        path.unlink(missing_ok=True)
