"""The command line. Thin: it reads arguments, calls the package and prints; heavy imports wait for their command."""

import errno
import os
import signal
import sys

from polyrhythm.lines import say

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What only writing comes to, and no mistake of ours."""


def main() -> None:
    try:
        from polyrhythm.cli.app import app  # here, as Ctrl-C may come while it is imported
    except KeyboardInterrupt:
        say("interrupted")
        sys.exit(128 + signal.SIGINT)
    try:
        app(prog_name="polyrhythm")
    except OSError as error:
        if error.errno not in FULL:
            raise
        say(f"{full_output()} cannot be written: {error.strerror}")
        sys.exit(1)


def full_output() -> str:
    """Which output is full: standard output where an empty line does not go there either."""
    try:
        print(flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the interpreter flushes once more at its end
        return "standard output"
    return "an output"
