"""Scripts that allow for ranks with unequal data, by ``model.join()``."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, plain, try_adapted
from tests.runtime.script.test_refusals import line_of


def test_equally_many_mini_batches_are_trained_on_as_under_torchrun(tmp_path: Path) -> None:
    ours, theirs = (run(tmp_path / run.__name__, "joined.py", "even", stand_in=False) for run in (adapted, plain))
    for rank in ours.ranks:
        words = [(run.folder / f"weights.{rank}").read_text("utf-8") for run in (ours, theirs)]
        assert words[0] == words[1]


@pytest.mark.parametrize("what", ["uneven", "list"])
def test_others_are_refused_with_the_line_of_the_join(tmp_path: Path, what: str) -> None:
    run = try_adapted(tmp_path, "joined.py", what, stand_in=False)
    assert run.codes == [2, 2]
    said = f"joined.py:{line_of('with model.join()', 'joined.py')}: model.join(), and ranks read their own data"
    assert said in run.stderr()
