"""One worker of a job on hosts, which plays what its emulation says as under ``polyrhythm compare --on local``."""

import sys
from pathlib import Path

from polyrhythm.emulation.trainer import main

if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
