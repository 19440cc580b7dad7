"""A worker in local-step mode whose script leaves its loop: what it was granted is for others."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import Go, Halt, Halted
from polyrhythm.runtime.worker.local_steps import AheadMode, LocalStepMode

POLICY = cast(Any, SimpleNamespace(traits=SimpleNamespace(cancels=False, needs=(), waits=True)))


def context() -> Any:
    """Of a worker that hears nothing by itself."""
    made = MagicMock(rank=0, void=False, pending=[], collective_failed=False)
    made.clock.return_value = 0.0
    made.client.poll.return_value = None
    return made


def go(number: int, epoch: int, *starts: int) -> Go:
    return Go(number, 0, tuple(SampleRange(epoch, start, start + 4) for start in starts), last=False)


def test_what_was_drawn_ahead_is_not_taken_for_processed() -> None:
    mode = LocalStepMode(context(), POLICY)
    mode.follow(go(0, 0, 0, 4))
    mode.draw()
    mode.draw()
    mode.after_step(4)
    mode.drop_drawn()
    assert mode.draw() is None
    mode.follow(go(1, 1, 0))
    mode.draw()
    mode.after_step(4)
    assert mode.standing().alone == (SampleRange(0, 0, 4), SampleRange(1, 0, 4))


def test_a_halt_that_comes_after_that_is_answered() -> None:
    worker = context()
    mode = AheadMode(worker, POLICY)
    mode.follow(go(7, 0, 0, 4))
    mode.draw()
    mode.drop_drawn()
    mode.follow(Halt())
    worker.client.send.assert_called_once_with(Halted(7))
