"""The command line. Thin: it reads arguments, calls the package and prints; heavy imports wait for their command."""

import sys

INTERRUPTED = 130
"""Exit code after Ctrl-C, as drivers have it."""


def main() -> None:
    try:
        from polyrhythm.cli.app import app
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    app(prog_name="polyrhythm")
