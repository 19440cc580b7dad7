from collections.abc import Mapping

import numpy as np
import pytest

from polyrhythm.doctor.marks import RankMarks, StepMarks, evidence_of
from polyrhythm.errors import TraceError
from tests.doctor.jobs import EXCHANGE_S, drawn


def marked(own_s: np.ndarray, shift_s: Mapping[int, float] | None = None, rate: float = 1.0) -> list[RankMarks]:
    """Stamps of ranks that meet in every step; some read a clock that is off by so much, and runs at another rate."""
    end_s = np.cumsum(own_s.max(axis=0) + EXCHANGE_S)
    begin_s = np.concatenate(([0.0], end_s[:-1]))
    ranks = []
    for rank, own in enumerate(own_s):
        off = (shift_s or {}).get(rank, 0.0)
        clock = rate if off else 1.0
        steps = {
            step: StepMarks(clock * (begin_s[step] + own[step]) + off, clock * end_s[step] + off)
            for step in range(len(own))
        }
        ranks.append(RankMarks(rank, f"host{rank}", f"clock{off}", steps))
    return ranks


def test_who_arrives_last_waits_for_nobody() -> None:
    own_s = np.array([[0.02, 0.02, 0.02], [0.02, 0.05, 0.03]])
    evidence = evidence_of("job", marked(own_s))
    assert evidence.own_s == pytest.approx(own_s[:, 1:])
    assert evidence.waiting_s == pytest.approx(np.array([[0.03, 0.01], [0.0, 0.0]]))
    assert evidence.communication_s == pytest.approx(np.full((2, 2), EXCHANGE_S))


def test_a_clock_an_hour_apart_is_set_by_the_collectives() -> None:
    own_s = drawn(3, 50)
    straight, apart = evidence_of("job", marked(own_s)), evidence_of("job", marked(own_s, {2: 3600.0}))
    assert apart.start_s == pytest.approx(straight.start_s, abs=1e-6)
    assert apart.own_s == pytest.approx(straight.own_s, abs=1e-6)


def test_a_clock_that_runs_faster_is_set_by_the_collectives() -> None:
    apart = evidence_of("job", marked(drawn(3, 400), {1: -7200.0}, rate=1.0001))
    assert np.ptp(apart.start_s, axis=0).max() < 1e-3


def test_what_a_rank_stood_in_another_collective_is_no_work_of_its_own() -> None:
    steps = [{0: StepMarks(0.1, 0.2), 1: StepMarks(0.5, 0.6, other_s=other_s)} for other_s in (0.25, 0.01)]
    evidence = evidence_of("job", [RankMarks(rank, "", "", made) for rank, made in enumerate(steps)])
    assert evidence.own_s[:, 0] == pytest.approx([0.05, 0.29])
    assert evidence.waiting_s[:, 0] == pytest.approx([0.24, 0.0])


def test_steps_that_one_rank_lacks_are_left_out() -> None:
    ranks = marked(drawn(2, 10))
    short = RankMarks(1, "host1", "clock0.0", {k: v for k, v in ranks[1].steps.items() if k not in (0, 5)})
    evidence = evidence_of("job", [ranks[0], short])
    assert evidence.steps == 6
    assert evidence.notes == ("3 of 9 steps were left out: not all ranks have them and the step before",)
    assert evidence_of("job", ranks).notes == ()


@pytest.mark.parametrize(
    ("ranks", "world", "message"),
    [
        ([0], None, "needs traces of at least 2 ranks but got 1"),
        ([0, 1, 1], None, "there are 2 traces of rank 1; keep one"),
        ([0, 2], 4, "the job has 4 ranks, but there is no trace of rank 1, 3"),
    ],
)
def test_ranks_must_be_there_once(ranks: list[int], world: int | None, message: str) -> None:
    made = marked(drawn(3, 10))
    with pytest.raises(TraceError, match=message):
        evidence_of("job", [made[rank] for rank in ranks], world=world)


def test_a_step_whose_predecessor_is_missing_is_left_out_and_no_other() -> None:
    made = marked(own_s := drawn(3, 40))
    holes = {rank: dict(one.steps) for rank, one in enumerate(made)}
    del holes[0][10], holes[2][20]
    evidence = evidence_of("job", [RankMarks(rank, "", "one", holes[rank]) for rank in holes])
    whole = evidence_of("job", [RankMarks(rank, "", "one", one.steps) for rank, one in enumerate(made)])
    gone = [step - 1 - min(holes[1]) for step in (10, 11, 20, 21)]
    assert evidence.own_s == pytest.approx(np.delete(whole.own_s, gone, axis=1))
    assert evidence.steps == own_s.shape[1] - 1 - len(gone)


def test_ranks_must_share_steps() -> None:
    one, other = marked(drawn(2, 10))
    with pytest.raises(TraceError, match=r"0 steps are in the traces of all ranks \(rank 1 has 2\)"):
        evidence_of("job", [one, RankMarks(1, "", "", {77: other.steps[1], 78: other.steps[2]})])


def test_traces_of_two_jobs_are_told_apart() -> None:
    one, other = marked(drawn(2, 40))[0], marked(drawn(2, 40, step_s=0.05, seed=1))[1]
    with pytest.raises(TraceError, match="is its trace of another job or another part of it"):
        evidence_of("job", [one, RankMarks(1, "", "other", other.steps)])
