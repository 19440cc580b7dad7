"""A push comes in two parts: its scalars to the coordinator, and its gradient to every shard."""

from collections.abc import Callable

from polyrhythm.errors import FrameError
from polyrhythm.runtime.wire.protocol import Pushed

MOST_PUSHED = 64
"""Gradients of a worker that may be announced before they are here."""


class PushMatcher:
    """Waits for both parts of each push.

    Args:
        complete: told of a push once both are there.

    Example:
        >>> seen = []
        >>> pushes = PushMatcher(lambda worker, message: seen.append((worker, message.number)))
        >>> pushes.arrived(1, 7)
        >>> pushes.told(1, Pushed(7, 32, 0.1, 0.0))
        >>> seen
        [(1, 7)]
    """

    def __init__(self, complete: Callable[[int, Pushed], None]) -> None:
        self._complete = complete
        self._told: dict[tuple[int, int], Pushed] = {}
        self._arrived: set[tuple[int, int]] = set()
        self._void: dict[int, set[int]] = {}

    def told(self, worker: int, message: Pushed) -> None:
        """The scalars are here.

        Raises:
            FrameError: if too many gradients of this worker are awaited.
        """
        key = worker, message.number
        if self._is_void(*key):
            return
        if key in self._arrived:
            self._arrived.discard(key)
            self._complete(worker, message)
            return
        self._told[key] = message
        if len(self._told) > MOST_PUSHED and sum(key[0] == worker for key in self._told) > MOST_PUSHED:
            raise FrameError(f"rank {worker} told of {MOST_PUSHED} gradients that have not come")

    def arrived(self, worker: int, number: int) -> None:
        """The gradient is at every shard."""
        message = self._told.pop((worker, number), None)
        if message is None:
            self._arrived.add((worker, number))
        else:
            self._complete(worker, message)

    def drop(self, worker: int, number: int) -> None:
        """Nobody waits for this push any more; shards do not say that its gradient has come."""
        self._arrived.discard((worker, number))
        if self._told.pop((worker, number), None) is None:
            self._void.setdefault(worker, set()).add(number)

    def _is_void(self, worker: int, number: int) -> bool:
        """Whether it was dropped; a worker tells of its steps in order, so that older ones are no matter any more."""
        dropped = self._void.pop(worker, set())
        if later := {other for other in dropped if other > number}:
            self._void[worker] = later
        return number in dropped

    def forget(self, worker: int) -> None:
        """Nothing more comes from this worker."""
        self._told = {key: message for key, message in self._told.items() if key[0] != worker}
        self._arrived = {key for key in self._arrived if key[0] != worker}
        self._void.pop(worker, None)
