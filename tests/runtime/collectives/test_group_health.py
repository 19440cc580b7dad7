"""What the words of a failure say about who is still there."""

import pytest

from polyrhythm.runtime.collectives.gloo_connections import GlooSockets
from polyrhythm.runtime.collectives.group_health import GroupHealth


@pytest.mark.parametrize(
    ("failure", "late"),
    [
        ("Timed out waiting 10ms for recv operation to complete", True),
        ("the members' sum failed: timed out", True),
        ("Application timeout caused pair closure", False),
        ("Connection closed by peer [10.0.0.2]:4711", False),
        ("Read error [10.0.0.2]:4711: Connection timed out", False),
    ],
)
def test_who_comes_late_is_there_and_a_host_that_answers_no_more_is_not(failure: str, late: bool) -> None:
    health = GroupHealth(GlooSockets(()))
    assert not health.is_late
    health.fail(failure)
    assert health.is_late == late
