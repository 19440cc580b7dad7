from math import inf
from typing import Any

import pytest

from polyrhythm.errors import ScenarioError
from polyrhythm.sim.cluster.faults import Faults, Join, Leave, RandomLeaves, RandomStragglers, Straggler, plan


def test_stated_faults() -> None:
    faults = Faults(
        stragglers=[
            Straggler(workers=[1, 2], start_s=5, duration_s=2, slowdown=3),
            Straggler(workers=[1], start_step=4, steps=2, extra_compute_s=0.5),
        ],
        leaves=[Leave(worker=0, step=7)],
        joins=[Join(worker=3, time_s=9)],
    )
    made = plan(faults, workers=4, seed=0)
    by_time, by_step = made.slow[1]
    assert made.slow[2] == (by_time,)
    assert [by_time.holds(t, 4) for t in (4.9, 5.0, 6.9, 7.0)] == [False, True, True, False]
    assert [by_step.holds(5.0, step) for step in (3, 4, 5, 6)] == [False, True, True, False]
    assert (made.leaves, made.joins) == ((Leave(worker=0, step=7),), (Join(worker=3, time_s=9),))


def test_a_straggler_without_end() -> None:
    made = plan(Faults(stragglers=[Straggler(workers=[0], start_step=1)]), 1, 0)
    assert made.slow[0][0].stop == inf


def test_drawn_faults_follow_the_seed() -> None:
    faults = Faults(
        random_stragglers=[RandomStragglers(workers=2, occurrences=3, duration_s=10, from_s=5, to_s=50, slowdown=2)],
        random_leaves=[RandomLeaves(workers=2, from_s=1, to_s=3, back_after_s=4)],
    )
    made = plan(faults, 8, 0)
    assert len(made.slow) == 2
    for times in made.slow.values():
        starts = [slow.start for slow in times]
        assert starts == sorted(starts)
        assert all(5 <= slow.start <= 50 and slow.stop == slow.start + 10 for slow in times)
        assert len(times) == 3
    assert len({leave.worker for leave in made.leaves}) == 2
    assert all(leave.time_s is not None and 1 <= leave.time_s <= 3 and leave.back_after_s == 4 for leave in made.leaves)
    assert plan(faults, 8, 0) == made
    assert plan(faults, 8, 1) != made


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Straggler(workers=[0]), "needs start_s or start_step, and not both"),
        (lambda: Straggler(workers=[0], start_s=1, start_step=1), "needs start_s or start_step, and not both"),
        (lambda: Straggler(workers=[0], start_s=1, steps=2), "steps goes with start_step"),
        (lambda: Straggler(workers=[0], start_step=1, duration_s=2), "duration_s goes with start_s"),
        (lambda: Leave(worker=0), "needs time_s or step, and not both"),
        (lambda: RandomStragglers(workers=1, duration_s=1, from_s=5, to_s=4), "to_s must be at least from_s = 5 but"),
        (lambda: RandomLeaves(workers=1, from_s=5, to_s=4), "to_s must be at least from_s = 5 but got 4"),
        (lambda: Faults(leaves=[Leave(worker=4, step=0)]).check(4), "there is no worker 4; the 4 workers are 0 to 3"),
        (lambda: Faults(random_leaves=[RandomLeaves(workers=5, to_s=1)]).check(4), "must be at most 4 but got 5"),
        (lambda: Faults(joins=[Join(worker=0, time_s=1)]).check(1), "names every worker"),
    ],
)
def test_impossible_faults(make: Any, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        make()
