"""Arguments of an open session that are of another kind."""

from collections.abc import Callable
from typing import Any

import pytest

import polyrhythm
from polyrhythm.errors import UsageError
from tests.runtime.jobs import Numbered, make_model, make_optimizer

MISUSE: dict[str, Callable[[Any], object]] = {
    "session state must be what state_dict gives but got None": lambda session: session.load_state_dict(None),
    "seed must be a whole number but got 'a'": lambda session: session.loader(Numbered(8), 4, seed="a"),
    "injection must be two shares in .* but got 3": lambda session: session.loader(Numbered(8), 4, injection=3),
}


@pytest.mark.parametrize("line", MISUSE)
def test_what_is_of_another_kind_is_refused_with_a_clear_line(line: str) -> None:
    model = make_model()
    with polyrhythm.session(model, make_optimizer(model, lr=0.1)) as session, pytest.raises(UsageError, match=line):
        MISUSE[line](session)
