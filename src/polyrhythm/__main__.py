"""``python -m polyrhythm`` is ``polyrhythm``."""

from polyrhythm.cli import main

main()
