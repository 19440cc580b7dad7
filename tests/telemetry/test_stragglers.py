"""Who is late where mini-batches are unequal: what counts is the time to the synchronization point."""

from polyrhythm.core import Report
from polyrhythm.policies._lib.detector import Detector
from polyrhythm.telemetry.stragglers import Stragglers


def view(told: list[str]) -> Stragglers:
    made = Stragglers(Detector(window=2, patience=1), tell=told.append)
    for worker in range(3):
        made.join(worker, 0.0)
    return made


def go(view: Stragglers, steps: int, sizes: tuple[int, ...], sample_s: tuple[float, ...], at_s: float = 0.0) -> None:
    for _ in range(steps):
        for worker, (samples, each_s) in enumerate(zip(sizes, sample_s, strict=True)):
            view.report(Report(worker, 1, at_s, samples, samples * each_s))


def test_who_has_a_share_that_fits_is_not_late() -> None:
    told: list[str] = []
    stragglers = view(told)
    go(stragglers, 8, (16, 16, 16), (1.0, 1.0, 4.0))
    assert stragglers.arrivals()[2].late
    go(stragglers, 8, (21, 22, 5), (1.0, 1.0, 4.0), at_s=400.0)
    assert not any(arrival.late for arrival in stragglers.arrivals().values())
    assert "worker 2 keeps up again" in told


def test_what_is_later_by_less_than_noise_is_not_late() -> None:
    told: list[str] = []
    stragglers = view(told)
    stragglers.least_s = 0.002
    go(stragglers, 8, (1, 1, 1), (0.001, 0.001, 0.0025))
    assert not stragglers.arrivals()[2].late
    go(stragglers, 8, (1, 1, 1), (0.001, 0.001, 0.0035))
    assert stragglers.arrivals()[2].late
    go(stragglers, 8, (1, 1, 1), (0.001, 0.001, 0.0025), at_s=60.0)
    assert told[-1] == "worker 2 keeps up again"


def test_the_rest_of_an_epoch_does_not_count() -> None:
    told: list[str] = []
    stragglers = view(told)
    go(stragglers, 5, (16, 16, 16), (1.0, 1.0, 1.0))
    go(stragglers, 1, (16, 1, 1), (1.0, 1.0, 1.0))
    go(stragglers, 4, (16, 16, 16), (1.0, 1.0, 1.0))
    assert told == []


def test_who_is_late_now_and_then_is_not_told_of_each_time() -> None:
    told: list[str] = []
    stragglers = view(told)
    for time_s in range(20):
        go(stragglers, 4, (16, 16, 16), (1.0, 1.0, 4.0 if time_s % 2 else 1.0), at_s=float(time_s))
    assert stragglers.arrivals()[2].spells == 10
    assert len(told) <= 2
