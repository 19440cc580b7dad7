"""Folders that go with their process, and what becomes of them if it is killed.

Each is locked as long as its process lives. So one that can be locked is nobody's any more; the number of a process
would tell nothing of a container that has the same directory of temporary files.
"""

import os
import shutil
import tempfile
import weakref
from contextlib import suppress
from pathlib import Path
from types import TracebackType

PREFIX = "polyrhythm-tmp-"
"""How their names begin: those of before, which nobody locks, had a shorter one."""


class OwnFolder:
    """A folder for what need not outlive this process; a forked one may use it, and leaves it.

    Example:
        >>> with OwnFolder() as name:
        ...     _ = Path(name, "file").write_text("text")
        >>> Path(name).exists()
        False
    """

    def __init__(self) -> None:
        self.name, lock = made()
        self.remove = weakref.finalize(self, remove, self.name, lock, os.getpid())

    def __enter__(self) -> str:
        return self.name

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


def temporary_folder() -> OwnFolder:
    """A new one, where those of processes that were killed are gone."""
    remove_left()
    return OwnFolder()


def remove_left() -> None:
    """Remove the folders of this user whose processes are gone."""
    with suppress(OSError), os.scandir(tempfile.gettempdir()) as entries:
        for path in [entry.path for entry in entries if entry.name.startswith(PREFIX)]:
            with suppress(OSError):  # it is locked, or somebody else's, or gone
                remove_one_left(path)


def remove_one_left(path: str) -> None:
    import fcntl  # which not every system has

    lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        if os.fstat(lock).st_uid == os.geteuid():
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path)
    finally:
        os.close(lock)


def made() -> tuple[str, int]:
    """A folder and the descriptor that locks it."""
    while True:
        name = tempfile.mkdtemp(prefix=PREFIX)
        with suppress(FileNotFoundError):
            lock = locked(name)
            if Path(name).exists():  # otherwise somebody has taken it for one that was left
                return name, lock
            os.close(lock)


def locked(folder: str) -> int:
    lock = os.open(folder, os.O_RDONLY)
    with suppress(ImportError, OSError):  # where nothing can be locked, nobody removes anything
        import fcntl

        fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


def remove(folder: str, lock: int, owner: int) -> None:
    if os.getpid() == owner:
        shutil.rmtree(folder, ignore_errors=True)
    os.close(lock)
