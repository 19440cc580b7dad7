"""The command line. Thin: it reads arguments, calls the package and prints; heavy imports wait for their command."""

import atexit
import errno
import gc
import os
import signal
import sys

try:
    import threading

    from polyrhythm.early_end import early_end, unheard
    from polyrhythm.lines import say
except KeyboardInterrupt:  # `main`, which handles signals, does not run yet
    print("polyrhythm: interrupted", file=sys.stderr)
    sys.exit(128 + signal.SIGINT)

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""What only writing comes to, and no mistake of ours."""

GARBAGE_AT = 50_000
"""New objects after which Python looks for cycles: a run makes hardly any, and imports make many objects."""

EARLY = (128 + signal.SIGINT, 128 + signal.SIGTERM)
"""Exit statuses of what a signal has ended."""


def main() -> None:
    gc.set_threshold(GARBAGE_AT)
    atexit.register(gc.freeze)  # else Python looks through all of torch once more at its end, for a second
    try:
        with early_end.by_signals():
            called()
    except SystemExit as left:
        if left.code in EARLY:
            end_as_said()
        raise


def end_as_said() -> None:
    """Nothing is left but the interpreter's end: have it exit with our status, and at once if a signal comes again."""
    threading.excepthook = unheard
    exec("")  # `python -m` would end by SIGINT if the last source that was executed was interrupted
    if signal.getsignal(signal.SIGINT) == signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)


def called() -> None:
    try:
        from polyrhythm.cli.app import app  # here, as a signal may come while it is imported

        app(prog_name="polyrhythm")
    except KeyboardInterrupt:
        say(early_end.how)
        sys.exit(early_end.status)
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
