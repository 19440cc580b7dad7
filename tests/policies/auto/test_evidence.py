"""What auto measures of its workers, through the end of an epoch."""

from polyrhythm.core import Cancel, Joined, Left, Proceed, Report, Sync
from polyrhythm.policies.auto.evidence import JobTimes


def rounds(seen: JobTimes, workers: tuple[int, ...], begin_s: float) -> JobTimes:
    """Five rounds of BSP: a step of one second, and an exchange of a quarter."""
    for number in range(5):
        time_s = begin_s + 1.25 * (number + 1)
        for worker in workers:
            seen = seen.after(Report(worker, number + 1, time_s, 8, step_s=1.0), alone=False)
        seen = seen.decided((Sync(workers), Proceed(workers)), time_s)
    return seen


def test_exchanges_are_timed_again_when_somebody_has_not_come_back_with_the_next_epoch() -> None:
    seen = rounds(JobTimes(8).after(Joined((0, 1, 2), 0.0), alone=False), (0, 1, 2), 0.0)
    for worker in range(3):
        seen = seen.after(Left(worker, 7.0, 5, "finished"), alone=False)
    assert (len(seen.workers), len(seen.exchanges)) == (3, 4)
    seen = rounds(seen.after(Joined((0, 1), 8.0, 5), alone=False), (0, 1), 8.0)
    assert (len(seen.workers), len(seen.exchanges)) == (2, 8)


def test_of_who_was_always_abandoned_a_step_is_known_to_take_as_long_as_it_had() -> None:
    """Predictions divided by the time of a sample, which was none."""
    seen = JobTimes(8).after(Joined((0, 1), 0.0), alone=False).decided((Proceed((0, 1)),), 0.0)
    for number in range(5):
        time_s = float(number + 1)
        seen = seen.after(Report(0, number + 1, time_s, 8, step_s=1.0), alone=False)
        seen = seen.decided((Sync((0,)), Cancel((1,)), Proceed((0, 1))), time_s)
    assert seen.view is not None
    assert [time.expected_s(8) for time in seen.view.times] == [1.0, 1.0]
