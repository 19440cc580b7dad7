"""Scripts that go on once their process group is gone."""

from pathlib import Path

import pytest

from tests.runtime.script.runs import adapted, plain


@pytest.mark.parametrize("policy", ["bsp", "asp"])
def test_what_a_script_trains_after_its_group_is_its_own(tmp_path: Path, policy: str) -> None:
    """Of one worker every policy makes the steps of that worker."""
    run = adapted(tmp_path / "run", "afterwards.py", policy=policy, ranks=1, stand_in=False)
    assert run.stdout(0) == plain(tmp_path / "alone", "afterwards.py", ranks=1, stand_in=False).stdout(0)
