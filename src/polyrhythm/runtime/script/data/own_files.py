"""Files that a rank of a script for a single process writes in the place of those that only the first rank may."""

import errno
import fcntl
import functools
import os
import shutil
import weakref
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any, TypeGuard

from polyrhythm.telemetry.folders import OwnFolder

AnyPath = str | bytes | os.PathLike[Any]


class OwnFiles:
    """What this rank writes, by the path that the script gives it; the rank reads, moves and removes it there.

    Without them a rank would cut off a file that another one has just written, or read one that is half written.

    Attributes:
        active: whether only the first rank may write, as is known once the script has made a step.

    Example:
        >>> files = OwnFiles()
        >>> files.place("model.pt", "rb")
        'model.pt'
        >>> files.place("model.pt", "wb") == files.place("./model.pt", "rb") != "model.pt"
        True
    """

    def __init__(self) -> None:
        self.active = False
        self._places: dict[str, str] = {}
        self._unshared = set[str]()
        self._early: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
        self._numbers = count()

    # -- which files ---------------------------------------------------------------------------------------------------

    def leave(self, path: AnyPath) -> None:
        """No other rank has this file or folder, as its name is a random one."""
        self._unshared.add(os.path.realpath(os.fsdecode(path)))

    def is_shared(self, path: AnyPath) -> bool:
        """Whether other ranks may have a file of this path, too."""
        known = Path(os.path.realpath(os.fsdecode(path)))
        return self._unshared.isdisjoint(map(str, (known, *known.parents)))

    def own(self, path: object) -> str | None:
        """Where this rank's file of that path is, or was before it was moved or removed."""
        if not self._places or not is_path(path):
            return None
        return self._places.get(name_of(path)) or self._places.get(os.path.realpath(os.fsdecode(path)))

    def is_own(self, path: AnyPath) -> bool:
        """The same of what has this name; a link to such a file is another one."""
        return name_of(path) in self._places

    def place(self, path: Any, mode: str) -> Any:
        """Where a file is that the script opens by this path."""
        place = self.own(path)
        if place is None and writes(mode) and is_path(path) and is_ordinary(path) and self.is_shared(path):
            place = self._make(path, mode)
        return path if place is None else place

    # -- what is done with them ----------------------------------------------------------------------------------------

    def move(self, source: AnyPath, target: AnyPath) -> None:
        """Move what this rank has written; the first rank's files are not its own to move."""
        old, new = name_of(source), name_of(target)
        if old == new:
            return
        place = self._places.get(old)
        if place is not None:
            Path(place).stat()  # as in a single process, one that is gone is an error
        elif not self.is_shared(source):
            place = self._taken(source, new)
        self._put(new, place)
        if old in self._places:
            self._places[old] = self._fresh()
        for inner in self._within(old):
            self._put(new + inner.removeprefix(old), self._places.pop(inner))

    def _taken(self, source: AnyPath, name: str) -> str | None:
        """Where a file that `tempfile` has made is moved, or what is in such a folder."""
        place = self._fresh()
        shutil.move(os.fsdecode(source), place)
        if not Path(place).is_dir():
            return place
        for file in [file for file in Path(place).rglob("*") if file.is_file()]:
            self._put(f"{name}/{file.relative_to(place)}", str(file))
        return None

    def link(self, source: AnyPath, target: AnyPath) -> None:
        """Give what this rank has written a second name; links to the first rank's files are not its own to make."""
        self._put(name_of(target), self.own(source))

    def remove(self, path: AnyPath) -> None:
        """Remove what this rank has written; the first rank's files are not its own to remove."""
        name = name_of(path)
        if name in self._places:
            if not os.path.lexists(name):  # else it may be listed here until the first rank removes its own
                Path(self._places[name]).stat()
            self._put(name, self._fresh())

    def remove_folder(self, folder: AnyPath) -> None:
        """The same, of a folder that is empty as far as this rank can tell.

        Raises:
            OSError: if it is not.
        """
        name = name_of(folder)
        own = any(Path(self._places[inner]).exists() for inner in self._within(name))
        with suppress(FileNotFoundError):
            own = own or not all(f"{name}/{entry}" in self._places for entry in os.listdir(name))  # noqa: PTH208
        if own:
            raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY), name)

    def remove_tree(self, folder: AnyPath) -> None:
        """Remove what this rank has written into a folder."""
        for name in self._within(name_of(folder)):
            self._put(name, self._fresh())

    # -- files that were opened before ---------------------------------------------------------------------------------

    def remember(self, file: Any, path: AnyPath) -> None:
        """The script has opened this file to write into it, while all ranks did so."""
        if is_ordinary(path) and self.is_shared(path):
            self._early[file] = name_of(path)

    def begin(self) -> None:
        """From now on this rank writes into files of its own, also through what is open."""
        self.active = True
        for file, name in list(self._early.items()):
            with suppress(ValueError):  # it is closed
                self._turn(file.fileno(), name)
        self._early.clear()

    def _turn(self, descriptor: int, name: str) -> None:
        """What a buffer still has goes into the own file, too."""
        place = self.own(name) or self._make(name, "a")
        append = fcntl.fcntl(descriptor, fcntl.F_GETFL) & os.O_APPEND
        own = os.open(place, os.O_RDWR | os.O_CREAT | append)
        os.lseek(own, os.lseek(descriptor, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, descriptor, inheritable=os.get_inheritable(descriptor))
        os.close(own)

    # -- where they are ------------------------------------------------------------------------------------------------

    @functools.cached_property
    def _folder(self) -> OwnFolder:
        folder = OwnFolder()
        self.leave(folder.name)
        return folder

    def _fresh(self) -> str:
        return f"{self._folder.name}/{os.getpid()}-{next(self._numbers)}"  # a forked child has the same folder

    def _make(self, path: AnyPath, mode: str) -> str:
        known, place = os.path.realpath(os.fsdecode(path)), self._fresh()
        is_there = Path(known).is_file()
        if "r" in mode and not is_there:
            return known
        if is_there and ("r" in mode or "a" in mode):
            shutil.copyfile(known, place)
        self._places[known] = place
        return place

    def _put(self, name: str, place: str | None) -> None:
        """What had this name is no more; without a place it is the first rank's file again."""
        before = self._places.pop(name, None)
        if before is not None and before != place and before not in self._places.values():
            Path(before).unlink(missing_ok=True)
        if place is not None:
            self._places[name] = place

    def _within(self, folder: str) -> list[str]:
        return [name for name in list(self._places) if name.startswith(folder + os.sep)]


def is_path(path: object) -> TypeGuard[AnyPath]:
    return isinstance(path, str | bytes | os.PathLike)


def name_of(path: AnyPath) -> str:
    """Where it is, without links on the way; it may itself be one."""
    given = Path(os.fsdecode(path))
    return f"{os.path.realpath(given.parent)}/{given.name}"


def writes(mode: str) -> bool:
    """Whether a file that is opened so may be written.

    >>> [mode for mode in ("r", "rb", "w", "ab", "x", "r+b") if writes(mode)]
    ['w', 'ab', 'x', 'r+b']
    """
    return not set(mode).isdisjoint("wax+")


def is_ordinary(path: AnyPath) -> bool:
    """Whether it is, or may become, a file on a disk.

    >>> is_ordinary("/dev/null"), is_ordinary("/tmp"), is_ordinary("log.csv")
    (False, False, True)
    """
    known = Path(os.path.realpath(os.fsdecode(path)))
    return known.is_file() or not known.exists()
