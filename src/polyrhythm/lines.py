"""Lines for whoever has started the program."""

import contextlib
import sys


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
