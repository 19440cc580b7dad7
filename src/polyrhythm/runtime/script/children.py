"""Processes that a script starts by itself: what they train follows no policy, so they may not.

Those of `torch.multiprocessing.spawn` are the workers of the job, if there are as many: each worker does what the
process of its number would do.
"""

import functools
import os
import sys
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from typing import Any, NoReturn

import torch
import torch.multiprocessing

from polyrhythm.errors import REFUSED, RefusalError
from polyrhythm.runtime.launch.rendezvous import read_number
from polyrhythm.runtime.script.notices import called_by_script, refuse, script_line, tell

REASON = (
    "processes of the script's own follow no policy; train in the script's own process, and let polyrhythm run "
    "--nproc-per-node start as many"
)

MEETING = ("MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK")
"""Variables that a script may set for the processes that it spawns."""


class SpawnOver:
    """What ``spawn(join=False)`` returns here: all is done."""

    def join(self, *_: Any, **__: Any) -> bool:
        return True


class Children:
    """Those that the script has started, each with its line; not those of a DataLoader or a pool."""

    def __init__(self) -> None:
        self._started: dict[BaseProcess, str] = {}
        self._place = {name: os.environ[name] for name in MEETING if name in os.environ}
        self._spawned = False

    def patch_spawn(self, wanted: Callable[[], bool]) -> None:
        """Let each worker be the process of its number that the script would spawn, while `wanted`."""
        processes: Any = torch.multiprocessing
        original = processes.spawn

        @functools.wraps(original)
        def spawn(fn: Callable[..., Any], args: Any = (), nprocs: int = 1, join: bool = True, **options: Any) -> Any:
            if not wanted():
                return original(fn, args, nprocs, join, **options)
            workers = read_number("LOCAL_WORLD_SIZE", 1)
            if nprocs != workers:
                raise refuse(
                    f"multiprocessing.spawn starts {nprocs} processes, but the job has {workers} workers on this host; "
                    f"give polyrhythm run --nproc-per-node {nprocs}"
                )
            self._spawned = True
            tell(f"the {nprocs} processes of multiprocessing.spawn are the workers of the job")
            fn(read_number("LOCAL_RANK", 0), *args)
            return None if join else SpawnOver()

        processes.spawn = spawn

    def meeting(self, given: dict[str, Any]) -> dict[str, Any]:
        """How the script's process group is set up: spawned processes meet where the launcher has said."""
        if not self._spawned:
            return given
        os.environ.update(self._place)
        ours = {"rank": read_number("RANK", 0), "world_size": read_number("WORLD_SIZE", 1)}
        for name, value in ours.items():
            if given.get(name, -1) not in (-1, value):
                raise refuse(f"this process has {name} {value} in the job, but {given[name]} in the script")
        return {**given, **ours, "init_method": None, "store": None}

    def patch(self, wanted: Callable[[], bool]) -> None:
        """Watch all processes that are started while `wanted`."""
        start_original, join_original = BaseProcess.start, BaseProcess.join

        @functools.wraps(start_original)
        def start(process: BaseProcess) -> None:
            if wanted() and called_by_script():
                self._started[process] = script_line()
                self._guard(process)
            start_original(process)

        @functools.wraps(join_original)
        def join(process: BaseProcess, *args: Any, **kwargs: Any) -> None:
            join_original(process, *args, **kwargs)
            if process in self._started and process.exitcode == REFUSED:
                raise refuse(REASON, self._started[process])

        kind: Any = BaseProcess
        kind.start, kind.join = start, join

    def check(self, trained: bool) -> None:
        for process, place in self._started.items():
            if process.exitcode == REFUSED or not trained:
                raise refuse(REASON, place)

    def _guard(self, process: Any) -> None:
        if getattr(process, "_target", None) is not None:
            process._target = Guarded(process._target)


class Guarded:
    """What such a process runs, here or in a new interpreter."""

    def __init__(self, target: Callable[..., Any]) -> None:
        self._target = target

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        torch.autograd.backward = refuse_backward
        try:
            self._target(*args, **kwargs)
        except RefusalError:
            sys.exit(REFUSED)


def refuse_backward(*_: Any, **__: Any) -> NoReturn:
    raise RefusalError(REASON)
