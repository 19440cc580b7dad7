"""Run a function in several real worker processes: results and tracebacks collected, a hard time limit, no orphans.

The processes are forked from a server process that has already imported torch and what a session needs, so that a
worker starts in tens of milliseconds instead of seconds.
"""

import faulthandler
import gc
import os
import pickle
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, NamedTuple

PRELOAD = (
    "torch.distributed",
    "torch.nn.parallel",
    "torch.optim",
    "torch._dynamo",
    "pytest",
    "polyrhythm.testing.processes",
    "polyrhythm.runtime.worker.session",
    "polyrhythm.runtime.coordinator.process",
)


class ProcessOutcome(NamedTuple):
    """How one worker ended: what its function returned, or its traceback, or the signal that killed it."""

    rank: int
    exit_code: int
    value: Any = None
    traceback: str = ""

    @property
    def ok(self) -> bool:
        """Whether the function returned."""
        return self.exit_code == 0 and not self.traceback


class WorkersError(AssertionError):
    """A worker raised, died without leave, or did not end in time."""


class Workers:
    """Worker processes that run ``function(rank, *args)``.

    Args:
        function: importable by name, as for `multiprocessing`.
        count: number of processes, with the ranks 0 ... count - 1.
        args: further arguments, the same for every worker.
        threads: intra-operation threads of torch in each worker.
    """

    def __init__(self, function: Callable[..., Any], count: int, *args: Any, threads: int = 1) -> None:
        context = get_context("forkserver")
        context.set_forkserver_preload(list(PRELOAD))
        self.processes: list[ForkServerProcess] = []
        self.connections: list[Connection] = []
        for rank in range(count):
            ours, theirs = context.Pipe()
            process = context.Process(target=_main, args=(theirs, threads, function, rank, args), name=f"worker-{rank}")
            process.start()
            theirs.close()
            self.processes.append(process)
            self.connections.append(ours)

    def kill(self, rank: int, signal_number: int = signal.SIGKILL) -> None:
        """Send a signal to one worker; SIGSTOP makes it hang."""
        pid = self.processes[rank].pid
        assert pid is not None
        os.kill(pid, signal_number)

    def join(self, timeout_s: float, leave: Sequence[int] = ()) -> list[ProcessOutcome]:
        """Wait for the end of all workers but those in `leave`; their outcomes by rank.

        Raises:
            WorkersError: after `timeout_s` seconds, with the stacks of the workers that still run on stderr.
        """
        deadline = time.monotonic() + timeout_s
        awaited = [rank for rank in range(len(self.processes)) if rank not in leave]
        outcomes: dict[int, ProcessOutcome] = {}
        while missing := [rank for rank in awaited if rank not in outcomes]:
            ready = wait([self.connections[rank] for rank in missing], max(0.0, deadline - time.monotonic()))
            if not ready:
                ended = "".join(f"\n{told(outcome)}" for outcome in outcomes.values())
                raise WorkersError(f"workers {missing} still run after {timeout_s:g} s{self._stacks(missing)}{ended}")
            for rank in missing:
                if self.connections[rank] in ready:
                    outcomes[rank] = self._outcome(rank)
        return [outcomes[rank] for rank in awaited]

    def close(self) -> None:
        """Kill what still runs."""
        for process, connection in zip(self.processes, self.connections, strict=True):
            process.kill()
            process.join()
            connection.close()

    def _outcome(self, rank: int) -> ProcessOutcome:
        """The end of a connection that is readable: a message, or end of file if the process was killed."""
        try:
            # Plain pickle: multiprocessing's own would send handles to memory that dies with the worker.
            value, trace = pickle.loads(self.connections[rank].recv_bytes())  # noqa: S301 (our own child)
        except (EOFError, ConnectionResetError):
            value, trace = None, ""
        self.processes[rank].join()
        code = self.processes[rank].exitcode
        assert code is not None
        return ProcessOutcome(rank, code, value, trace)

    def _stacks(self, ranks: Sequence[int]) -> str:
        """Have faulthandler write the stacks of these workers to their stderr."""
        for rank in ranks:
            self.kill(rank, signal.SIGUSR1)
        time.sleep(0.2)
        return "; their stacks are on stderr"


def run_workers(function: Callable[..., Any], count: int, *args: Any, timeout_s: float = 60.0) -> list[Any]:
    """What ``function(rank, *args)`` returned in each of `count` processes.

    Raises:
        WorkersError: if one raises (with its traceback), is killed, or runs longer than `timeout_s` seconds.

    Example:
        >>> from operator import add
        >>> run_workers(add, 2, 10)
        [10, 11]
    """
    with workers(function, count, *args) as running:
        outcomes = running.join(timeout_s)
    failed = [outcome for outcome in outcomes if not outcome.ok]
    if failed:
        raise WorkersError("\n".join(told(outcome) for outcome in failed))
    return [outcome.value for outcome in outcomes]


def told(outcome: ProcessOutcome) -> str:
    """How a worker ended, for a reader."""
    return f"worker {outcome.rank} ended with {outcome.exit_code}\n{outcome.traceback}"


@contextmanager
def workers(function: Callable[..., Any], count: int, *args: Any) -> Iterator[Workers]:
    """Running workers, killed at the end of the block if they have not ended by then."""
    running = Workers(function, count, *args)
    try:
        yield running
    finally:
        running.close()


def _main(connection: Connection, threads: int, function: Callable[..., Any], rank: int, args: tuple[Any, ...]) -> None:
    import torch

    from polyrhythm.runtime.wire.parent_death import end_with_starter

    gc.freeze()  # what the server has imported is no garbage; looking through it would also copy its memory
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1)
    end_with_starter()
    torch.set_num_threads(threads)
    exit_code = 0
    try:
        connection.send_bytes(pickle.dumps((function(rank, *args), "")))
    except BaseException:
        exit_code = 1
        connection.send_bytes(pickle.dumps((None, traceback.format_exc())))
    # No destructors: those of gloo's threads may abort a process that has done its work (torch 2.13, 3 of 6 runs).
    os._exit(exit_code)


def first_child(process: int) -> int:
    """The oldest process that this one has forked and not waited for, as soon as there is one.

    Raises:
        ProcessLookupError: if it ends before.
    """
    there = Path(f"/proc/{process}/task/{process}")
    with suppress(FileNotFoundError):
        while "\nState:\tZ" not in (there / "status").read_text():
            if children := (there / "children").read_text().split():
                return int(children[0])
            time.sleep(0.001)
    raise ProcessLookupError(f"process {process} has ended")
