"""Arguments of an open session that are of another kind."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import polyrhythm
from polyrhythm.errors import UsageError
from polyrhythm.runtime.worker import refusals
from tests.runtime.jobs import Numbered, make_model, make_optimizer

MISUSE: dict[str, Callable[[Any], object]] = {
    "session state must be what state_dict gives but got None": lambda session: session.load_state_dict(None),
    "session state must have epoch and policy but has nothing; give what": lambda s: s.load_state_dict({}),
    "session state must have epoch and policy but has 3, epoch; give": lambda s: s.load_state_dict({"epoch": 1, 3: 4}),
    "epoch of the session state must be a whole number of at least -1 but got '1'": lambda session: (
        session.load_state_dict({"epoch": "1", "policy": "bsp"})
    ),
    "seed must be a whole number from 0 to 4294967295 but got 'a'": lambda session: session.loader(
        Numbered(8), 4, seed="a"
    ),
    "seed must be a whole number from 0 to 4294967295 but got -1": lambda session: session.loader(
        Numbered(8), 4, seed=-1, partition="defdp"
    ),
    "seed must be a whole number from 0 to 4294967295 but got True": lambda session: session.loader(
        Numbered(8), 4, seed=True
    ),
    "batch_size must be a whole number of at least 1 but got True": lambda session: session.loader(Numbered(8), True),
    "accumulate must be a whole number of at least 1 but got 0": lambda session: session.loader(
        Numbered(8), 4, accumulate=0
    ),
    "injection must be two shares in .* but got 3": lambda session: session.loader(Numbered(8), 4, injection=3),
}


def test_what_is_of_another_kind_is_refused_with_a_clear_line(subtests: pytest.Subtests) -> None:
    model = make_model()
    with polyrhythm.session(model, make_optimizer(model, lr=0.1)) as session:
        for line, misuse in MISUSE.items():
            with subtests.test(line), pytest.raises(UsageError, match=line):
                misuse(session)


def test_a_session_within_a_session_is_refused_and_one_after_it_is_not() -> None:
    """It was a second job, without a word, or the same rank once more."""
    model = make_model()
    with polyrhythm.session(model, make_optimizer(model, lr=0.1)) as outer:
        with (
            pytest.raises(UsageError, match="a session is open already; end its with block first, or give one session"),
            polyrhythm.session(model, make_optimizer(model, lr=0.1)),
        ):
            pytest.fail("it is open")
        assert len(list(outer.loader(Numbered(8), 4))) == 2
    with pytest.raises(UsageError, match="unknown policy"), polyrhythm.session(model, outer._optimizer) as inner:
        inner.switch("bspp")
    with polyrhythm.session(model, make_optimizer(model, lr=0.1)):
        """Also after one that has failed."""


def test_a_session_that_another_thread_has_left_is_over_for_the_one_that_opened_it() -> None:
    mark = refusals.note_open()
    with pytest.raises(UsageError, match="a session is open already"):
        refusals.refuse_second()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(refusals.refuse_second).result()  # it has none of its own
        pool.submit(setattr, mark, "process", 0).result()
    refusals.refuse_second()


def test_steps_that_fit_no_batch_are_refused() -> None:
    with pytest.raises(UsageError, match=r"one step for each batch of session\.loader"):
        refusals.refuse_untimely(0, due=False)
    with pytest.raises(UsageError, match=r"when session\.step_due is true"):
        refusals.refuse_untimely(2, due=False)
    refusals.refuse_untimely(2, due=True)
