"""Real workers of all tests are copies of one server process, whichever test needs them first."""

import gc
from collections.abc import Generator
from multiprocessing import forkserver

import pytest
from hypothesis import settings
from hypothesis.internal.conjecture import providers
from hypothesis.internal.constants_ast import Constants

from polyrhythm.emulation.local import PRELOADED
from polyrhythm.testing.processes import PRELOAD

# The same examples in every run, however loaded the machine is.
settings.register_profile("seeded", derandomize=True, deadline=None)
settings.load_profile("seeded")
# Else numbers of our modules are drawn, too: of those that are loaded, which tests before this one decide.
assert hasattr(providers, "_get_local_constants")
providers._get_local_constants = Constants


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is imported and collected stays to the end: no collection of garbage looks through it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _server() -> None:
    """It starts with all that any of them imports: what it lacks, each of them would import again."""
    forkserver.set_forkserver_preload([*PRELOAD, *PRELOADED, "hypothesis"])
    forkserver.ensure_running()
