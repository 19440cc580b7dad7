"""What a process does inside polyrhythm, call by call, as `sys.setprofile` tells it; see `trips`."""

import atexit
import inspect
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

RECORD = "POLYRHYTHM_TRIPS"
"""Environment variable with the folder into which every process of a job writes its calls."""

MOST_CALLS = 400_000
"""Calls that are recorded of one process; those after them are left out."""


class Call(NamedTuple):
    """A call into a module, a return to one, or a call of a C function (`module` is its name then)."""

    kind: str
    module: str
    depth: int


class Recorder:
    """Records calls and returns of the package's own code, and C calls out of it.

    Args:
        package: folder of the package.
        most: calls that are recorded.
    """

    def __init__(self, package: str, most: int = MOST_CALLS) -> None:
        self.calls: list[Call] = []
        self._package = package.rstrip(os.sep) + os.sep
        self._most = most
        self._names: dict[str, str] = {}
        self._depth = 0

    def start(self) -> None:
        """Record from now on."""
        sys.setprofile(self.seen)

    def stop(self) -> None:
        """Record no more."""
        sys.setprofile(None)

    def seen(self, frame: FrameType, event: str, argument: Any) -> None:
        """One event of the profile. Generators count like any call, and imports do not."""
        if len(self.calls) >= self._most:
            sys.setprofile(None)
        elif event == "c_call":
            if self._module(frame):
                self.calls.append(Call("c", argument.__name__, self._depth))
        elif event == "call" and (module := self._module(frame)):
            self._depth += 1
            self.calls.append(Call("call", module, self._depth))
        elif event == "return" and self._module(frame):
            self._depth -= 1
            caller = frame.f_back
            while caller is not None and not self._module(caller):
                caller = caller.f_back
            self.calls.append(Call("return", self._module(caller) if caller else "", self._depth))

    def _module(self, frame: FrameType) -> str:
        """The file below the package that a frame is in; nothing if it is elsewhere, or a body of a module or class."""
        code = frame.f_code
        name = self._names.get(code.co_filename)
        if name is None:
            inside = code.co_filename.startswith(self._package)
            name = self._names[code.co_filename] = code.co_filename[len(self._package) :] if inside else ""
        return name if code.co_flags & inspect.CO_OPTIMIZED else ""


def turns(calls: Sequence[Call], marks: str, least: int = 20) -> Iterator[Sequence[Call]]:
    """One call each of the outermost function that is called again and again and enters a module that ends so."""
    for depth in range(1, 30):
        found = [turn for turn in at_depth(calls, depth) if any(call.module.endswith(marks) for call in turn)]
        if len(found) >= least:
            yield from found
            return


def at_depth(calls: Sequence[Call], depth: int) -> Iterator[Sequence[Call]]:
    """What happens in each call at one depth, the call and its return left out."""
    start: int | None = None
    for index, call in enumerate(calls):
        if call.kind == "call" and call.depth == depth:
            start = index
        elif call.kind == "return" and call.depth == depth - 1 and start is not None:
            yield calls[start:index]
            start = None


def record_this_process() -> None:
    """Called in each process of a job from its ``sitecustomize``: record its main thread, and write it at the end.

    A process that is forked, as the coordinator is by its keeper, records itself alone, and ends by `os._exit`.
    """
    folder = os.environ.get(RECORD)
    if folder is None:
        return
    recorder = Recorder(os.environ[f"{RECORD}_PACKAGE"])
    recorder.start()

    def write() -> None:
        recorder.stop()
        Path(folder, f"{os.getpid()}.json").write_text(json.dumps(recorder.calls))

    def write_and_exit(status: int) -> NoReturn:
        write()
        leave(status)

    atexit.register(write)
    os.register_at_fork(after_in_child=recorder.calls.clear)
    leave, os._exit = os._exit, write_and_exit


def read_processes(folder: Path) -> list[list[Call]]:
    """What the processes of a job have written."""
    return [[Call(*call) for call in json.loads(path.read_text())] for path in sorted(folder.glob("*.json"))]
