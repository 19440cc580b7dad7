"""The command line. Thin: it reads arguments, calls the package and prints; heavy imports wait for their command."""

import sys

from polyrhythm.cli.exit_codes import INTERRUPTED


def main() -> None:
    try:
        from polyrhythm.cli.app import app
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    app(prog_name="polyrhythm")
