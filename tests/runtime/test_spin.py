"""Waiting awake: it ends with an answer, with the time, or when someone else wants the processor; and it learns."""

from polyrhythm.runtime.spin import MOST_SKIPPED, TAKEN_S, Spinner


class Machine:
    """A clock that goes on when the processor is offered, and an answer that comes at a time."""

    def __init__(self, offer_s: float, answer_at_s: float = 1e9) -> None:
        self.now_s, self.offer_s, self.answer_at_s = 0.0, offer_s, answer_at_s
        self.looks = 0

    def offer(self) -> None:
        self.now_s += self.offer_s

    def look(self) -> list[str]:
        self.looks += 1
        return ["answer"] if self.now_s >= self.answer_at_s else []

    def spinner(self) -> Spinner:
        return Spinner(lambda: self.now_s, self.offer)


def test_what_is_there_is_found_at_once() -> None:
    machine = Machine(offer_s=1e-6, answer_at_s=0.0)
    assert machine.spinner().look(machine.look, 1e-4) == ["answer"]
    assert (machine.looks, machine.now_s) == (1, 0.0)


def test_an_answer_that_comes_in_time_is_found_awake() -> None:
    machine = Machine(offer_s=1e-6, answer_at_s=50e-6)
    assert machine.spinner().look(machine.look, 1e-4) == ["answer"]
    assert machine.now_s < 60e-6


def test_nobody_stays_awake_for_longer_than_the_limit() -> None:
    machine = Machine(offer_s=1e-6)
    assert not machine.spinner().look(machine.look, 1e-4)
    assert 0.9e-4 < machine.now_s < 1.1e-4


def test_a_processor_that_others_use_is_left_to_them_unless_the_answer_came_meanwhile() -> None:
    machine = Machine(offer_s=3 * TAKEN_S)
    assert not machine.spinner().look(machine.look, 1e-3)
    assert machine.looks == 2
    machine = Machine(offer_s=3 * TAKEN_S, answer_at_s=TAKEN_S)
    assert machine.spinner().look(machine.look, 1e-3) == ["answer"]


def attempts(machine: Machine, spinner: Spinner, waits: int) -> int:
    """How many of these waits, each with the same time to its answer, stayed awake."""
    tried = 0
    for _ in range(waits):
        machine.looks = 0
        spinner.look(machine.look, 1e-4)
        tried += machine.looks > 0
    return tried


def test_attempts_become_rare_where_answers_take_long_and_usual_again_where_they_do_not() -> None:
    machine = Machine(offer_s=5e-6)
    spinner = machine.spinner()
    assert attempts(machine, spinner, 1000) < 1000 / MOST_SKIPPED + 8
    for _ in range(MOST_SKIPPED + 1):
        machine.answer_at_s = machine.now_s + 2e-5
        found = spinner.look(machine.look, 1e-4)
    assert found == ["answer"]
    machine.answer_at_s = 1e9
    assert attempts(machine, spinner, 3) == 2
