"""What a rank tells of a step that fails, in synchronous mode."""

from unittest.mock import Mock

import pytest

from polyrhythm.runtime.worker.synchronous import SynchronousMode

COMPLETED = 3


@pytest.mark.parametrize(
    ("failed_after", "skipped", "told"),
    [(COMPLETED + 1, True, True), (COMPLETED + 1, False, False), (COMPLETED, True, False)],
)
def test_a_step_that_the_script_skipped_is_told_as_such_if_it_is_one(
    failed_after: int, skipped: bool, told: bool
) -> None:
    """The policy's exchange of gradients fails after the step is decided, any other one before there is a step."""
    mode = SynchronousMode.__new__(SynchronousMode)
    mode._context, mode._records, mode._broken = Mock(), b"", False
    mode._completed, mode._skipped, mode._failure = COMPLETED, [], (failed_after, "a member is lost")
    mode._complete(8, skipped)
    (completed, _), report = mode._context.report_failed_collective.call_args
    assert (completed, report["skipped"]) == (failed_after, told)
    assert mode._skipped == [COMPLETED] * told
