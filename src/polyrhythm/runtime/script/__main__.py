"""``python -m polyrhythm.runtime.script [-m] script [arguments]``: what `polyrhythm run` starts in every worker."""

import atexit
import gc
import io
import os
import sys
from typing import NoReturn

if __name__ == "__main__":
    gc.disable()  # what torch makes while it is imported is no garbage; looking for some takes a sixth of the time

from polyrhythm.runtime.collectives.group_health import GroupHealth
from polyrhythm.runtime.launch.forked import fork_workers
from polyrhythm.runtime.script.bootstrap import end_threads, main


def write_lines() -> None:
    """Write each line at once: what two ranks print in pieces, as ``-u`` has it, is mixed within a line."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=False)


def leave(code: int) -> NoReturn:
    """End this process as Python does, but leave torch as it is.

    Threads of a process group that has failed may still wait, and then C++'s way out aborts the process (seen under
    load: "terminate called without an active exception"), although the script has ended well.
    """
    end_threads()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def run() -> int:
    try:
        return main(sys.argv[1:])
    except SystemExit as error:
        if not GroupHealth.failures or not isinstance(error.code, int | None):
            raise
        return error.code or 0


if __name__ == "__main__":
    write_lines()
    fork_workers()
    gc.freeze()  # nor is it at the end, where Python looks once more
    gc.enable()
    code = run()
    if GroupHealth.failures:
        leave(code)
    sys.exit(code)
