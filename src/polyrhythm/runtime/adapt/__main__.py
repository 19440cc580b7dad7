"""``python -m polyrhythm.runtime.adapt [-m] script [arguments]``: what the launcher starts as a worker."""

import sys

from polyrhythm.runtime.adapt.bootstrap import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
