"""Lines for whoever has started the program."""

import contextlib
import os
import sys
from pathlib import Path

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
