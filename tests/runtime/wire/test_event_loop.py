"""The loop that serves connections, and is called from other threads."""

from polyrhythm.runtime.wire.event_loop import Loop


def test_it_may_be_called_as_often_as_one_likes_before_it_looks() -> None:
    """As when a host goes with all of its workers: for each that is lost all others are told."""
    loop, calls = Loop(), list[int]()
    for number in range(5000):
        loop.call_from_thread(lambda number=number: calls.append(number))  # type: ignore[misc]
    loop.step(0.0)
    assert calls == list(range(5000))
    loop.close()
