"""The command line. Thin: it reads arguments, calls the package and prints; heavy imports wait for their command."""

from polyrhythm.cli.app import app


def main() -> None:
    app(prog_name="polyrhythm")
