"""Runs a script in this process as ``python script`` would, after everything is in place."""

import atexit
import os
import runpy
import signal
import sys
import threading
from collections.abc import Sequence
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import torch.distributed as dist
from torch.distributed.distributed_c10d import is_initialized

from polyrhythm.errors import (
    BROKEN,
    REFUSED,
    BrokenPolicyError,
    DivergedError,
    PolyrhythmError,
    RefusalError,
    UsageError,
)
from polyrhythm.lines import first_to_say, say
from polyrhythm.runtime.launch.rendezvous import read_number
from polyrhythm.runtime.launch.restarts import tell_status
from polyrhythm.runtime.script.notices import caught
from polyrhythm.runtime.script.patches import install
from polyrhythm.runtime.script.script import AdaptedScript
from polyrhythm.runtime.wire.parent_death import tie_forks
from polyrhythm.training.divergence import DIVERGED

INTERRUPTED = 128 + signal.SIGINT
"""Exit code of a script that Ctrl-C has ended."""


LAUNCHERS = (("-m", "torch.distributed.launch"), ("-m", "torch.distributed.run"))
"""What would start workers of its own; ours are there already."""


def main(arguments: Sequence[str]) -> int:
    """Run ``[-m] script [arguments]`` to its end."""
    tie_forks()
    after = ExitStack()
    atexit.register(after.close)  # before the script registers what needs its group, so that this comes later
    script = AdaptedScript(read_number("RANK", 0), read_number("WORLD_SIZE", 1))
    script.stalls.ended = end_stalled
    install(script)
    try:
        run_to_end(arguments, script)
    except BrokenPolicyError as error:
        script.close(type(error), error)
        return tell_status(BROKEN)
    except PolyrhythmError as error:
        say_once(error)
        script.close(type(error), error)
        return tell_status(status_of(error))
    except BaseException as error:
        if is_interrupt(error):  # the launcher says so for all ranks
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            script.close(type(error), error)
            return INTERRUPTED
        failed = not isinstance(error, SystemExit) or error.code not in (None, 0)
        script.close(*((type(error), error) if failed else ()))
        raise
    script.close()
    end_threads()
    after.callback(leave_group)
    return 0


def leave_group() -> None:
    """Unless the script has."""
    if is_initialized():
        dist.destroy_process_group()


def end_threads() -> None:
    """Wait for the script's threads as Python does at its end: what they write meanwhile may need its group.

    It tells executors first that nothing more comes, whose threads would wait for that.
    """
    threading._shutdown()  # type: ignore[attr-defined]


def is_interrupt(error: BaseException) -> bool:
    """Whether Ctrl-C is why; torch makes a RuntimeError of what a hook of a backward pass raises.

    >>> is_interrupt(RuntimeError("Cannot extract tensors from value: KeyboardInterrupt: <EMPTY MESSAGE>"))
    True
    """
    return isinstance(error, KeyboardInterrupt) or (type(error) is RuntimeError and "KeyboardInterrupt" in str(error))


def run_to_end(arguments: Sequence[str], script: AdaptedScript) -> None:
    try:
        execute(arguments)
    except SystemExit as error:
        if error.code in (None, 0):
            check_end(script)
        raise
    check_end(script)


def check_end(script: AdaptedScript) -> None:
    script.check_end()
    if refusal := caught():
        say_once(RefusalError(f"{refusal} (the script has caught this and gone on)"))


def say_once(error: PolyrhythmError) -> None:
    """Print an error, unless another process of this host has."""
    if first_to_say(error.reason or str(error)):
        who = f"rank {os.environ.get('RANK', '0')}"
        named = isinstance(error, RefusalError) or str(error).startswith(f"{who} ")
        say(str(error) if named else f"{who}: {error}")


def end_stalled(text: str) -> None:
    """From another thread than that which waits, perhaps within torch."""
    say_once(RefusalError(text))
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(tell_status(REFUSED))


def status_of(error: PolyrhythmError) -> int:
    if isinstance(error, DivergedError):
        return DIVERGED
    return REFUSED if isinstance(error, UsageError) else 1


def execute(arguments: Sequence[str]) -> None:
    """The script in place of this module: same ``__main__``, arguments and import path as without us."""
    if tuple(arguments[:2]) in LAUNCHERS:
        arguments = within_launcher(arguments)
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path[0] = str(Path.cwd())
        check_module(arguments[1])
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        return
    path = Path(arguments[0])
    if not path.exists():
        raise UsageError(f"cannot find the script {path}")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise UsageError(f"{path} is a folder without a __main__.py; name a script")
    sys.argv = list(arguments)
    sys.path[0] = str(path.resolve().parent)
    runpy.run_path(str(path), run_name="__main__")


def check_module(module: str) -> None:
    """Whether there is such a module, in packages that can be imported."""
    try:
        found = find_spec(module)
    except ModuleNotFoundError as error:
        if not error.name or not f"{module}.".startswith(f"{error.name}."):
            raise
        found = None
    if found is None:
        raise UsageError(f"cannot find the module {module}")


def within_launcher(arguments: Sequence[str]) -> list[str]:
    """What each worker of a launcher of torch's would run.

    >>> within_launcher(["-m", "torch.distributed.launch", "train.py", "--lr", "0.1"])
    ['train.py', '--local-rank=0', '--lr', '0.1']
    """
    from torch.distributed.launch import parse_args

    given = parse_args(list(arguments[2:]))  # type: ignore[no-untyped-call]
    workers = str(read_number("LOCAL_WORLD_SIZE", 1))
    asked = any(word.startswith(("--nproc", "--n-proc")) for word in arguments)
    if asked and given.nproc_per_node.isdigit() and given.nproc_per_node != workers:
        raise UsageError(
            f"{arguments[1]} starts {given.nproc_per_node} workers a host, but the job has {workers}; "
            f"give polyrhythm run --nproc-per-node {given.nproc_per_node}"
        )
    old = arguments[1].endswith("launch") and not given.use_env
    rank = [f"--local-rank={read_number('LOCAL_RANK', 0)}"] if old else []
    return [*["-m"][: given.module], given.training_script, *rank, *given.training_script_args]
