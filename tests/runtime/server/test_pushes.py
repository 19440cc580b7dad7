"""A push is complete with both of its parts, and one that was dropped is waited for no more."""

import pytest

from polyrhythm.errors import FrameError
from polyrhythm.runtime.server.pushes import MOST_PUSHED, PushMatcher
from polyrhythm.runtime.wire.protocol import Pushed


def pushed(number: int) -> Pushed:
    return Pushed(number, 32, 0.1, 0.0)


@pytest.mark.parametrize("told_first", [True, False])
def test_a_worker_that_is_always_late_is_no_stranger(told_first: bool) -> None:
    """Each of its steps is cancelled while its push is under way, and of such a gradient no shard says that it came."""
    complete: list[tuple[int, int]] = []
    pushes = PushMatcher(lambda worker, message: complete.append((worker, message.number)))
    for number in range(3 * MOST_PUSHED):
        if told_first:
            pushes.told(1, pushed(number))
        pushes.drop(1, number)
        if not told_first:
            pushes.told(1, pushed(number))
    pushes.arrived(1, number + 1)
    pushes.told(1, pushed(number + 1))
    assert complete == [(1, number + 1)]


def test_one_that_never_pushes_what_it_tells_of_is_refused() -> None:
    pushes = PushMatcher(lambda *_: None)
    for number in range(MOST_PUSHED):
        pushes.told(1, pushed(number))
    with pytest.raises(FrameError, match=f"rank 1 told of {MOST_PUSHED} gradients that have not come"):
        pushes.told(1, pushed(MOST_PUSHED))
