import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.doctor.lateness import lateness
from tests.doctor.jobs import drawn


def test_nobody_is_late_in_a_healthy_job() -> None:
    seen = lateness(drawn())
    assert (seen.always, seen.spells, seen.suspect) == ((), (), None)
    assert not seen.late.any()


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_who_is_late_in_every_step_is_late_on_the_whole(ranks: int) -> None:
    own_s = drawn(ranks)
    own_s[1] *= 1.3
    assert lateness(own_s).always == (1,)


def test_a_slow_minute_is_one_spell() -> None:
    own_s = drawn()
    own_s[2, 60:90] *= 3
    seen = lateness(own_s)
    assert (seen.always, seen.spells) == ((), (2,))
    assert np.flatnonzero(seen.late[2]).tolist() == list(range(60, 90))


def test_a_few_stalls_are_a_suspicion_and_many_are_none() -> None:
    few, many = drawn(), drawn()
    few[3, ::50] += 0.1
    many[3, ::15] += 0.1
    assert (lateness(few).spells, lateness(few).suspect, lateness(few).needed) == ((), 3, 10)
    assert (lateness(many).spells, lateness(many).suspect) == ((3,), None)


def test_stalls_that_fall_on_all_ranks_name_nobody() -> None:
    own_s = drawn(steps=400)
    own_s += 0.1 * (np.random.default_rng(1).random(own_s.shape) < 0.02)
    assert (lateness(own_s).always, lateness(own_s).spells) == ((), ())


def test_two_ranks_in_turns_are_both_late() -> None:
    own_s = drawn()
    turn = (np.arange(200) // 10) % 2 == 0
    own_s[0, turn] *= 2
    own_s[3, ~turn] *= 2
    assert lateness(own_s).spells == (0, 3)


@given(st.integers(2, 6), st.integers(0, 2**31), st.data())
@settings(deadline=None, max_examples=25)
def test_the_numbers_of_the_ranks_do_not_matter(ranks: int, seed: int, data: st.DataObject) -> None:
    own_s = drawn(ranks, seed=seed)
    own_s[0] *= data.draw(st.sampled_from([1.0, 1.5]))
    order = data.draw(st.permutations(range(ranks)))
    seen, moved = lateness(own_s), lateness(own_s[order])
    assert sorted(order[row] for row in moved.always) == list(seen.always)


@given(st.integers(0, 2**31), st.floats(0.01, 100.0))
@settings(deadline=None, max_examples=25)
def test_the_unit_of_time_does_not_matter(seed: int, factor: float) -> None:
    own_s = drawn(seed=seed)
    own_s[1, 20:60] *= 2
    assert lateness(own_s)[:2] == lateness(factor * own_s)[:2]
