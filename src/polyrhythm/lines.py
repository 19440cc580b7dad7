"""Lines for whoever has started the program."""

import contextlib
import errno
import os
import sys
from pathlib import Path

with contextlib.suppress(ImportError):  # not every system has it
    import resource  # here, as it is needed when no file can be opened

SAID = "POLYRHYTHM_SAID"
"""Environment variable of the processes of a host with a file of what they have said, so that one says it for all."""


def say(*lines: str) -> None:
    """Print lines on stderr in one piece, beside other processes that do; a full disk ends no job.

    >>> import contextlib, io
    >>> with contextlib.redirect_stderr(io.StringIO()) as printed:
    ...     say("rank 1 died")
    >>> printed.getvalue()
    'polyrhythm: rank 1 died\\n'
    """
    if sys.stderr is None:  # the program was started without one
        return
    with contextlib.suppress(OSError):
        print("".join(f"polyrhythm: {line}\n" for line in lines), end="", file=sys.stderr)


TOO_MANY = errno.EMFILE, errno.ENFILE
"""Errors of a system that opens no more files for a process, or for all."""


def reason_of(error: OSError) -> str:
    """What the system says, and the remedy if it opens no more files.

    >>> reason_of(OSError(errno.ENFILE, "Too many open files in system"))
    'too many open files on this host; raise fs.file-max'
    """
    if error.errno == errno.ENFILE:
        return "too many open files on this host; raise fs.file-max"
    if error.errno == errno.EMFILE:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return f"too many open files: a process has at most {most} here; raise ulimit -n, or use fewer workers"
    return error.strerror or str(error)


def first_to_say(text: str) -> bool:
    """Whether no other process of this host's job has said it; it counts as said from now on."""
    path, ours = os.environ.get(SAID), text + "\0"
    if not path or not Path(path).exists():
        return True
    import fcntl  # which not every system has

    with open(path, "a+", encoding="utf-8") as said:
        fcntl.flock(said, fcntl.LOCK_EX)
        said.seek(0)
        if ours in said.read():
            return False
        said.write(ours)
        return True
