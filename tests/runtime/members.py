"""Members of a group as threads of one process."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Found = TypeVar("Found")


def together(act: Callable[[int], Found], size: int = 2) -> list[Found]:
    """What each member finds, all at once."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(act, range(size)))
