import numpy as np
import pytest

from polyrhythm.doctor.culprits import culprits
from tests.doctor.jobs import drawn, job


def test_nobody_is_named_in_a_healthy_job() -> None:
    assert culprits(job(drawn()))[0] == []


def test_a_slow_rank_costs_what_the_job_would_save_without_it() -> None:
    own_s = np.full((4, 100), 0.02)
    own_s[2] = 0.05
    (one,) = culprits(job(own_s))[0]
    assert (one.rank, one.host, one.part, one.kind, one.late_share) == (2, "host1", "computing", "persistent", 1.0)
    assert one.lost_s == pytest.approx(100 * 0.03)
    assert one.excess_s == pytest.approx(0.03)
    assert one.lost_share == pytest.approx(0.03 / 0.052)


def test_the_part_that_takes_longer_is_named() -> None:
    own_s, loading_s = drawn(), np.full((4, 200), 0.004)
    own_s[1] += 0.02
    loading_s[1] += 0.02
    (one,) = culprits(job(own_s, loading_s))[0]
    assert (one.rank, one.part) == (1, "data loading")


def test_who_stands_still_now_and_then_pauses() -> None:
    own_s = drawn()
    own_s[0, ::12] += 0.1
    (one,) = culprits(job(own_s))[0]
    assert (one.rank, one.part, one.kind) == (0, "pause", "transient")
    assert one.late_share == pytest.approx(17 / 200)


def test_ranks_that_are_slow_in_turns_rotate() -> None:
    own_s, turn = drawn(), (np.arange(200) // 10) % 2 == 0
    own_s[0, turn] *= 2
    own_s[3, ~turn] *= 2
    found = culprits(job(own_s))[0]
    assert {one.rank: (one.kind, one.part) for one in found} == {
        0: ("rotating", "computing"),
        3: ("rotating", "computing"),
    }


def test_who_is_late_but_never_last_is_not_named() -> None:
    own_s = np.full((4, 100), 0.02)
    own_s[1], own_s[2] = 0.03, 0.06
    assert [one.rank for one in culprits(job(own_s))[0]] == [2]


def test_what_costs_next_to_nothing_is_no_verdict() -> None:
    own_s = drawn(deviation=0.001, steps=2000)
    own_s[0, 100:106] *= 1.5
    found, seen = culprits(job(own_s))
    assert (found, seen.spells) == ([], (0,))
