"""Windows that follow one another, and windows that slide."""

import random

import pytest

from polyrhythm.core import Joined, Left, LeftReason, Report
from polyrhythm.policies._lib.detector import METHODS, Detector, DetectorState


def watched(detector: Detector, *rounds: tuple[float, ...]) -> list[list[int]]:
    """Who is a straggler after each round of reports."""
    watch, named = DetectorState(), []
    for clock, seconds in enumerate(rounds, 1):
        for worker, step_s in enumerate(seconds):
            watch = detector.after(watch, Report(worker, clock, float(clock), step_s=step_s), live=len(seconds))
        named.append(list(watch.stragglers))
    return named


HEALTHY, LATE = (1.0, 1.0, 1.0, 1.0), (1.0, 1.0, 1.0, 3.0)


def test_a_sliding_window_ends_with_every_step() -> None:
    """Windows of 3 steps, two in a row: the mean of (1, 1, 3) is slow already, and so are the next."""
    rounds = (HEALTHY, HEALTHY, HEALTHY, LATE, LATE, LATE, LATE)
    apart = watched(Detector(window=3, patience=2), *rounds, LATE, LATE)
    sliding = watched(Detector(window=3, patience=2, sliding=True), *rounds)
    assert [bool(named) for named in apart] == [False] * 8 + [True]
    assert [bool(named) for named in sliding] == [False] * 4 + [True] * 3
    assert sliding[-1] == [3]


def test_a_single_late_step_names_nobody_unless_windows_slide() -> None:
    """It is in one window of those that follow one another, and in three of those that slide."""
    rounds = (*[HEALTHY] * 6, LATE, *[HEALTHY] * 6)
    assert not any(watched(Detector(window=3, patience=2), *rounds))
    assert any(watched(Detector(window=3, patience=2, sliding=True), *rounds))


def test_the_mean_of_a_sliding_window_is_that_of_its_last_steps() -> None:
    detector, watch = Detector(window=2, sliding=True), DetectorState()
    means = []
    for clock, step_s in enumerate((1.0, 2.0, 4.0), 1):
        watch = detector.after(watch, Report(0, clock, 0.0, step_s=step_s, transfer_s=1.0), live=1)
        means.append(watch.means.get(0))
    assert means == [None, 2.5, 4.0]


@pytest.mark.parametrize("method", METHODS)
def test_a_window_of_one_step_slides_as_it_is(method: str) -> None:
    stream = random.Random(0)
    rounds = [tuple(stream.lognormvariate(0.0, 0.5) for _ in range(6)) for _ in range(200)]
    apart, sliding = (watched(Detector(method, window=1, sliding=sliding), *rounds) for sliding in (False, True))
    assert apart == sliding


def named(detector: Detector, rounds: int, slow_s: float, watch: DetectorState, samples: int = 8) -> DetectorState:
    """After so many steps of four workers, of whom the last takes so long."""
    for clock in range(1, rounds + 1):
        for worker, step_s in enumerate((1.0, 1.0, 1.0, slow_s)):
            watch = detector.after(watch, Report(worker, clock, float(clock), samples, step_s), live=4)
    return watch


@pytest.mark.parametrize(("reason", "known"), [("finished", [3]), ("died", [])])
def test_an_epochs_end_clears_nobody(reason: LeftReason, known: list[int]) -> None:
    detector = Detector(window=2, patience=2)
    watch = named(detector, 6, 4.0, DetectorState())
    assert list(watch.stragglers) == [3]
    for worker in range(4):
        watch = detector.after(watch, Left(worker, 7.0, 6, reason), live=3 - worker)
    assert list(watch.stragglers) == known
    assert list(named(detector, 6, 1.0, watch).stragglers) == []


def test_who_does_not_come_back_with_the_others_is_compared_with_nobody() -> None:
    detector = Detector(window=2, patience=2)
    watch = named(detector, 6, 4.0, DetectorState())
    for worker in range(4):
        watch = detector.after(watch, Left(worker, 7.0, 6, "finished"), live=4 - worker)
    watch = detector.after(watch, Joined((0, 1, 2), 8.0, 6), live=0)
    assert (list(watch.means), list(watch.stragglers)) == ([0, 1, 2], [])


def test_windows_go_on_in_the_next_epoch() -> None:
    """Otherwise nobody is judged where an epoch is shorter than a window."""
    detector, watch = Detector(window=4, patience=1), DetectorState()
    for epoch in range(3):
        watch = named(detector, 3, 4.0, watch)
        for worker in range(4):
            watch = detector.after(watch, Left(worker, 4.0, 3 * epoch, "finished"), live=4 - worker)
        watch = detector.after(watch, Joined((0, 1, 2, 3), 5.0, 3 * epoch), live=0)
    assert list(watch.stragglers) == [3]


def sizes(watch: DetectorState) -> list[int]:
    return [size for _, size in watch.sizes.items()]


def test_smaller_mini_batches_count_where_all_are_smaller() -> None:
    detector = Detector(window=2, patience=2)
    watch = named(detector, 6, 4.0, DetectorState())
    watch = detector.after(watch, Report(0, 7, 7.0, 3, 0.1), live=4)  # the last one of an epoch
    assert (sizes(watch), list(watch.stragglers)) == ([8] * 4, [3])
    watch = named(detector, 8, 1.0, watch, samples=4)
    assert (sizes(watch), list(watch.stragglers)) == ([4] * 4, [])


@pytest.mark.parametrize(("slow_s", "stragglers"), [(1.0, []), (3.0, [3])])
def test_who_has_a_smaller_share_is_judged_by_when_it_arrives(slow_s: float, stragglers: list[int]) -> None:
    detector = Detector(window=2, patience=2)
    watch = named(detector, 6, 1.0, DetectorState())
    for clock in range(7, 17):
        for worker, (samples, step_s) in enumerate([(10, 1.0)] * 3 + [(2, slow_s)]):
            watch = detector.after(watch, Report(worker, clock, float(clock), samples, step_s), live=4)
    assert list(watch.stragglers) == stragglers


@pytest.mark.parametrize("window", [1, 3])
def test_the_last_mini_batches_of_an_epoch_clear_nobody(window: int) -> None:
    detector = Detector(window=window, patience=1)
    watch = named(detector, 6, 4.0, DetectorState())
    watch = detector.after(watch, Report(3, 7, 7.0, 2, 1.0), live=4)
    assert list(named(detector, 1, 4.0, watch).stragglers) == [3]
