"""Scripts that train what they have not wrapped in DistributedDataParallel."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import try_adapted
from tests.runtime.script.test_refusals import line_of

REFUSED = {
    "copy": "a copy of a DistributedDataParallel, and a copy exchanges nothing here; wrap a copy of the module",
    "head": "the optimizer trains parameters outside of DistributedDataParallel",
    "best": "an optimizer that is a copy of another steps within its training; keep copies of state_dict()",
    "probe": "an optimizer of an earlier training steps again",
}


@pytest.mark.parametrize("what", REFUSED)
def test_they_are_refused_in_words_about_that(tmp_path: Path, what: str) -> None:
    run = try_adapted(tmp_path, "unwrapped.py", what, stand_in=False, max_coordinator_restarts=1)
    assert run.codes == [2, 2], run.stderr()
    last = run.stderr().splitlines()[-1]
    assert f"unwrapped.py:{line_of('# of the first training', 'unwrapped.py')}: " in last
    assert REFUSED[what] in last
