"""The command line. Thin: it reads arguments, calls the package and prints; heavy imports wait for their command."""

import signal
import sys


def main() -> None:
    try:
        from polyrhythm.cli.app import app  # here, as Ctrl-C may come while it is imported
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    app(prog_name="polyrhythm")
