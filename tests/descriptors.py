"""A process that may open no more files."""

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def none_left() -> Iterator[list[int]]:
    """A block in which no descriptor is left but those that it closes of these."""
    before, held = resource.getrlimit(resource.RLIMIT_NOFILE), list[int]()
    most = max(int(each.name) for each in Path("/proc/self/fd").iterdir()) + 8  # other tests may have left some open
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        while (one := next_one()) >= 0:
            held.append(one)
        yield held
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        for descriptor in held:
            os.close(descriptor)


def next_one() -> int:
    """A descriptor; -1 if none is left."""
    try:
        return os.open(os.devnull, os.O_RDONLY)
    except OSError:
        return -1
