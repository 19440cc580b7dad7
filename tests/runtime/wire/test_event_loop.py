"""The loop that serves connections, is called from other threads, and spins before it sleeps.

Spinning ends with an answer, with the time, or when someone else wants the processor; and it learns.
"""

import math

import pytest

from polyrhythm.runtime.wire.event_loop import ALONE_S, MOST_SKIPPED, SPIN_S, TAKEN_S, Loop, Spinner


def test_it_may_be_called_as_often_as_one_likes_before_it_looks() -> None:
    """As when a host goes with all of its workers: for each that is lost all others are told."""
    loop, calls = Loop(), list[int]()
    for number in range(5000):
        loop.call_from_thread(lambda number=number: calls.append(number))  # type: ignore[misc]
    loop.step(0.0)
    assert calls == list(range(5000))
    loop.close()


@pytest.mark.parametrize("due_s", [3e6, 1e300, math.inf])
def test_what_is_due_in_a_month_or_never_keeps_nobody_from_waiting(due_s: float) -> None:
    loop, calls = Loop(spin_s=0.0), list[str]()
    timer = loop.call_later(due_s, lambda: calls.append("due"))
    loop.call_from_thread(lambda: calls.append("called"))
    loop.step()
    timer.cancel()
    loop.call_from_thread(lambda: calls.append("called again"))
    assert loop.run_until(lambda: len(calls) == 2, timeout_s=due_s)
    assert calls == ["called", "called again"]
    loop.close()


class Machine:
    """A clock that goes on with every look and when the processor is offered, and an answer that comes at a time."""

    def __init__(self, offer_s: float = 1e-6, answer_at_s: float = 1e9) -> None:
        self.now_s, self.offer_s, self.answer_at_s = 0.0, offer_s, answer_at_s
        self.looks = self.offers = 0

    def offer(self) -> None:
        self.now_s += self.offer_s
        self.offers += 1

    def look(self) -> list[str]:
        self.now_s += 1e-6
        self.looks += 1
        return ["answer"] if self.now_s >= self.answer_at_s else []

    def spinner(self) -> Spinner:
        return Spinner(lambda: self.now_s, self.offer)


def test_what_is_there_is_found_at_once() -> None:
    machine = Machine(answer_at_s=0.0)
    assert machine.spinner().look(machine.look) == ["answer"]
    assert machine.looks == 1


def test_a_quick_answer_is_found_without_a_switch_to_others() -> None:
    machine = Machine(answer_at_s=ALONE_S / 2)
    assert machine.spinner().look(machine.look) == ["answer"]
    assert machine.offers == 0


def test_for_a_later_answer_others_get_the_processor_and_at_once_the_next_time() -> None:
    machine = Machine(answer_at_s=1.5 * ALONE_S)
    spinner = machine.spinner()
    assert spinner.look(machine.look) == ["answer"]
    assert machine.offers > 0
    machine.offers, machine.answer_at_s = 0, machine.now_s + ALONE_S / 2
    assert spinner.look(machine.look) == ["answer"]
    assert machine.offers > 0


def test_nobody_stays_awake_for_longer_than_the_limits() -> None:
    machine = Machine()
    assert not machine.spinner().look(machine.look)
    assert ALONE_S + SPIN_S <= machine.now_s < 1.1 * (ALONE_S + SPIN_S)


def test_a_processor_that_others_use_is_left_to_them_unless_the_answer_came_meanwhile() -> None:
    machine = Machine(offer_s=1.1 * TAKEN_S)
    assert not machine.spinner().look(machine.look)
    assert machine.offers == 1
    machine = Machine(offer_s=1.1 * TAKEN_S, answer_at_s=ALONE_S + TAKEN_S)
    assert machine.spinner().look(machine.look) == ["answer"]
    assert machine.offers == 1


def attempts(machine: Machine, spinner: Spinner, waits: int) -> int:
    """How many of these waits, each with the same time to its answer, stayed awake."""
    tried = 0
    for _ in range(waits):
        machine.looks = 0
        spinner.look(machine.look)
        tried += machine.looks > 0
    return tried


def test_attempts_become_rare_where_answers_take_long_and_usual_again_where_they_do_not() -> None:
    machine = Machine()
    spinner = machine.spinner()
    assert attempts(machine, spinner, 1000) < 1000 / MOST_SKIPPED + 8
    for _ in range(MOST_SKIPPED + 1):
        machine.answer_at_s = machine.now_s + 2e-5
        found = spinner.look(machine.look)
    assert found == ["answer"]
    machine.answer_at_s = 1e9
    assert attempts(machine, spinner, 3) == 2
