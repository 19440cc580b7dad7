"""The calls by which a script writes, moves and removes files, and asks about them; on ranks other than the first."""

import builtins
import bz2
import functools
import io
import os
import pkgutil
import re
import shutil
import sys
import sysconfig
import tarfile
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from polyrhythm.runtime.script.data.own_files import OwnFiles, is_path, writes
from polyrhythm.runtime.script.notices import INSTALLED, callers, is_foreign

Call = Callable[..., Any]

STANDARD = os.path.realpath(sysconfig.get_path("stdlib")) + os.sep
UNASKED = tuple(STANDARD + name for name in ("tempfile.py", "multiprocessing/", "importlib/"))
"""Modules of the standard library whose files are their own."""
WRITERS = re.compile(
    r"/(?:site|dist)-packages/(?:numpy/lib/|pandas/|scipy/io/|PIL/"
    r"|joblib/(?:numpy_pickle|numpy_pickle_utils|compressor)\.py|torchvision/utils\.py|torch/utils/_contextlib\.py"
    r"|matplotlib/(?:_api|backends|backend_bases|cbook|figure|image|pyplot)\b)"
)
"""Parts of libraries that open the files that their caller names."""
OPENS: tuple[tuple[ModuleType, str], ...] = (
    (builtins, "open"),
    (io, "open"),
    (bz2, "_builtin_open"),
    (tarfile, "bltn_open"),
)
ASKS = ("stat", "lstat", "access", "utime", "chmod", "listxattr", "getxattr", "setxattr")
"""What asks about a file, or changes what is known of it."""
GROUPS: tuple[set[Call], ...] = (
    os.supports_dir_fd,
    os.supports_fd,
    os.supports_follow_symlinks,
    os.supports_effective_ids,
)


class StandIn(staticmethod):  # type: ignore[type-arg]
    """What stands in the place of a module's function: copied and pickled as that is, by its name, and never bound."""

    def __init__(self, module: ModuleType, name: str, original: Call, made: Call) -> None:
        super().__init__(functools.wraps(original)(made))
        self._place, self._original = f"{module.__name__}:{name}", original

    def __reduce__(self) -> tuple[Any, ...]:
        return pkgutil.resolve_name, (self._place,)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_original"], name)


def remember_files(files: OwnFiles, knows_ranks: Callable[[], bool]) -> None:
    """Note what a script opens for writing before it shows whether it is one for a single process."""

    def make(original: Call) -> Call:
        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            made = original(file, mode, *args, **kwargs)
            known = files.active or kwargs.get("opener") is not None or len(args) > 5 or knows_ranks()
            if not known and writes(mode) and is_path(file) and asked_by_script():
                files.remember(made, file)
            return made

        return open_

    for module in (builtins, io):
        stand_in(module, "open", make)


def turn_to_own(files: OwnFiles) -> None:
    """From now on what the script writes goes into files of this rank, also through what is open."""
    files.begin()
    patch_files(files)


def patch_files(files: OwnFiles) -> None:
    """Have a script's calls go to the files of this rank."""
    for module, name in OPENS:
        stand_in(module, name, open_calls(files))
    stand_in(torch, "save", saving(files))
    stand_in(torch, "load", loading(files))
    patch_numpy()
    patch_names(files)
    patch_temporary(files)


def patch_names(files: OwnFiles) -> None:
    """Calls that open nothing."""
    for name in ASKS:
        stand_in(os, name, asking(files))
    for module, name in ((os, "rename"), (os, "replace"), (shutil, "move")):
        stand_in(module, name, moving(files))
    for name in ("link", "symlink"):
        stand_in(os, name, linking(files))
    for name in ("remove", "unlink"):
        stand_in(os, name, removing(files, files.remove))
    stand_in(os, "rmdir", removing(files, files.remove_folder))
    stand_in(shutil, "rmtree", removing(files, files.remove_tree))


def stand_in(module: ModuleType, name: str, make: Callable[[Call], Call]) -> None:
    """Put what `make` makes of a function in its place, where it has one."""
    original = getattr(module, name, None)
    if original is None:
        return
    made = StandIn(module, name, original, make(original))
    vars(module)[name] = made
    for group in GROUPS:
        if original in group:
            group.add(made)


def asked_by_script() -> bool:
    """Whether the script's own code is the caller, directly or through what opens files in its stead.

    In a thread that runs a function of the standard library, nothing else is in sight.
    """
    apart = threading.current_thread() is not threading.main_thread()
    return next((not is_foreign(path) for path, _ in callers() if not passes(path)), apart)


def passes(path: str) -> bool:
    """Whether a call may come through this file, and is still the script's.

    >>> passes(shutil.__file__), passes(tempfile.__file__), passes("/home/me/train.py")
    (True, False, False)
    """
    if path.startswith(STANDARD) and not any(folder in path for folder in INSTALLED):
        return not path.startswith(UNASKED)
    return path == os.path.realpath(__file__) or WRITERS.search(path) is not None


def open_calls(files: OwnFiles) -> Callable[[Call], Call]:
    def make(original: Call) -> Call:
        def open_(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
            if kwargs.get("opener") is not None or len(args) > 5:
                return original(file, mode, *args, **kwargs)
            wanted = writes(mode) and is_path(file) and asked_by_script()
            return original(files.place(file, mode if wanted else "r"), mode, *args, **kwargs)

        return open_

    return make


def asking(files: OwnFiles) -> Callable[[Call], Call]:
    def make(original: Call) -> Call:
        def ask(path: Any = ".", *args: Any, **kwargs: Any) -> Any:
            resolves = sys._getframe(1).f_globals is vars(os.path)  # as `files.own` does
            place = None if resolves or kwargs.get("dir_fd") is not None else files.own(path)
            return original(path if place is None else place, *args, **kwargs)

        return ask

    return make


def moving(files: OwnFiles) -> Callable[[Call], Call]:
    def make(original: Call) -> Call:
        def move(src: Any, dst: Any, *args: Any, **kwargs: Any) -> Any:
            if not follows(files, src, dst, kwargs):
                return original(src, dst, *args, **kwargs)
            into = original.__name__ == "move" and Path(os.fsdecode(dst)).is_dir()
            target = Path(os.fsdecode(dst), Path(os.fsdecode(src)).name) if into else dst
            files.move(src, target)
            return str(target) if original.__name__ == "move" else None

        return move

    return make


def linking(files: OwnFiles) -> Callable[[Call], Call]:
    def make(original: Call) -> Call:
        def link(src: Any, dst: Any, *args: Any, **kwargs: Any) -> None:
            if not follows(files, dst, dst, kwargs):
                original(src, dst, *args, **kwargs)
                return
            beside = Path(os.fsdecode(dst)).parent if original.__name__ == "symlink" else Path()
            files.link(beside / os.fsdecode(src), dst)

        return link

    return make


def removing(files: OwnFiles, remove: Callable[[Any], None]) -> Callable[[Call], Call]:
    def make(original: Call) -> Call:
        def call(path: Any, *args: Any, **kwargs: Any) -> None:
            if follows(files, path, path, kwargs):
                remove(path)
            else:
                original(path, *args, **kwargs)

        return call

    return make


def follows(files: OwnFiles, source: Any, target: Any, options: dict[str, Any]) -> bool:
    """Whether a file is moved or removed that is this rank's, or the first rank's."""
    apart = any(options.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd"))
    if apart or not (is_path(source) and is_path(target)):
        return False
    shared = files.is_shared(source) or files.is_shared(target)
    return files.is_own(source) or (shared and asked_by_script())


def patch_numpy() -> None:
    """`np.savetxt` opens files by what numpy has kept of `open` since it was imported."""
    kept = getattr(sys.modules.get("numpy.lib._datasource"), "_file_openers", None)
    if kept is not None:
        kept._file_openers[None] = builtins.open


def patch_temporary(files: OwnFiles) -> None:
    """What `tempfile` makes has a name that no other rank has."""

    def noted(name_in: Callable[[Any], Any]) -> Callable[[Call], Call]:
        def make(original: Call) -> Call:
            def call(*args: Any, **kwargs: Any) -> Any:
                made = original(*args, **kwargs)
                files.leave(name_in(made))
                return made

            return call

        return make

    stand_in(tempfile, "mkdtemp", noted(lambda made: made))
    stand_in(tempfile, "mkstemp", noted(lambda made: made[1]))
    stand_in(tempfile, "NamedTemporaryFile", noted(lambda made: made.name))


def saving(files: OwnFiles) -> Callable[[Call], Call]:
    """These do not call `open` for every file; what libraries save with them is this rank's, too."""

    def make(original: Call) -> Call:
        def save(obj: object, f: Any, *args: Any, **kwargs: Any) -> None:
            original(obj, files.place(f, "wb"), *args, **kwargs)

        return save

    return make


def loading(files: OwnFiles) -> Callable[[Call], Call]:
    def make(original: Call) -> Call:
        def load(f: Any, *args: Any, **kwargs: Any) -> Any:
            return original(files.place(f, "rb"), *args, **kwargs)

        return load

    return make
