"""Waiting for the end of processes that are not our children."""

import os
import select
import time
from collections.abc import Iterable
from contextlib import suppress


def await_ends(pids: Iterable[int], limit_s: float) -> bool:
    """Whether all of these processes end within so many seconds."""
    deadline = time.monotonic() + limit_s
    return all(ends(pid, max(0.0, deadline - time.monotonic())) for pid in pids)


def ends(pid: int, limit_s: float) -> bool:
    with suppress(ProcessLookupError):
        descriptor = os.pidfd_open(pid)
        try:
            return readable(descriptor, limit_s)
        finally:
            os.close(descriptor)
    return True


def readable(descriptor: int, limit_s: float) -> bool:
    """Whether there is something to read, or an end, within so many seconds; descriptors may have any number."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(1000 * limit_s))
