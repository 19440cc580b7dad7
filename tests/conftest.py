"""Real workers of all tests are copies of one server process, whichever test needs them first."""

from multiprocessing import forkserver

import pytest

from polyrhythm.emulation.local import PRELOADED
from polyrhythm.testing.processes import PRELOAD


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    """It starts with all that any of them imports: what it lacks, each of them would import again."""
    forkserver.set_forkserver_preload([*PRELOAD, *PRELOADED, "hypothesis"])
    forkserver.ensure_running()
