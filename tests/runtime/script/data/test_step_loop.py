"""Which loop a script's steps are made in, and when it has left that."""

import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from polyrhythm.runtime.script.data.step_loop import InnerLoop, StepLoop, every_loop_of, loops_of


@pytest.fixture
def loop() -> StepLoop:
    return StepLoop()


def step(loop: StepLoop) -> None:
    loop.reads(sys._getframe(1))
    loop.stepped(sys._getframe(1))


def left(loop: StepLoop) -> bool:
    return loop.left(sys._getframe(1))


def test_within_the_outermost_loop_nothing_is_left(loop: StepLoop) -> None:
    found = []
    for _ in range(2):
        for _ in range(2):
            step(loop)
            found.append(left(loop))
        found.append(left(loop))
    assert found == [False] * 6
    assert left(loop)


def test_a_function_that_has_returned_has_left_its_loop(loop: StepLoop) -> None:
    def train() -> None:
        for _ in range(2):
            step(loop)

    train()
    assert left(loop)


def test_steps_in_no_loop_leave_none(loop: StepLoop) -> None:
    step(loop)
    assert not left(loop)


def test_a_loop_around_the_step_alone_is_none(loop: StepLoop) -> None:
    loop.reads(sys._getframe())
    for _ in range(2):
        loop.stepped(sys._getframe())
    assert not left(loop)


def test_a_script_that_computes_again_has_left_nothing(loop: StepLoop) -> None:
    for _ in range(2):
        step(loop)
    loop.computes = True
    assert not left(loop)


def test_a_generator_that_waits_has_left_nothing(loop: StepLoop) -> None:
    def steps() -> Iterator[int]:
        for number in range(2):
            step(loop)
            yield number

    steps_made = steps()
    next(steps_made)
    assert not left(loop)
    next(steps_made)


def test_another_thread_does_not_know(loop: StepLoop) -> None:
    for _ in range(2):
        step(loop)
    found: list[bool] = []
    ask: Callable[[], None] = lambda: found.append(left(loop))  # noqa: E731
    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [False]


def test_code_of_a_library_has_no_loops() -> None:
    assert loops_of(threading.__file__) == ()
    assert loops_of("<string>") == ()


def test_the_innermost_loop_is_also_one_of_a_library() -> None:
    inner = InnerLoop()
    assert not inner.found
    for _ in range(2):
        for _ in range(2):
            inner.reads(sys._getframe())
            inner.stepped(sys._getframe())
            assert not inner.left(sys._getframe())
        assert inner.left(sys._getframe())
    assert every_loop_of(threading.__file__)
