"""A worker in local-step mode: what it was granted when its script leaves its loop, and what a step's transfers are."""

from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pytest

from polyrhythm.core import Sync
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.collectives.model_averaging import ContributionWeight
from polyrhythm.runtime.wire.protocol import Go, Halt, Halted, LocalStepDone, TakePart
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


def test_a_word_to_meet_that_names_nobody_is_of_all_members() -> None:
    worker = context()
    worker.phase = SimpleNamespace(members=(0, 2))
    mode = LocalStepMode(worker, POLICY)
    mode.follow(go(0, 0, 0))
    mode.draw()
    mode.after_step(4)
    mode.follow(TakePart(1, Sync((), "deltas")))
    whole = Sync((0, 2), "deltas")
    worker.exchange.combine.assert_called_once_with(ContributionWeight(whole, 0.5, adopts=True), 1)
    assert (mode.standing().offers, mode.standing().alone) == (((1, (SampleRange(0, 0, 4),)),), ())


@pytest.mark.parametrize("meets", [True, False])
def test_what_the_end_of_an_epoch_takes_is_no_transfer_of_a_step(meets: bool) -> None:
    """A query takes half a second, the closing average 4 s, and the script is at other things until 100 s."""
    worker = context()
    mode = LocalStepMode(worker, POLICY)
    for number, (begins_s, ends_s) in enumerate(((0.0, 1.0), (1.5, 2.0), (100.0, 101.0))):
        worker.clock.return_value = begins_s
        mode.follow(go(number, number // 2, 4 * number))
        mode.draw()
        worker.clock.return_value = ends_s
        mode.after_step(4)
        if number == 1:
            worker.clock.side_effect = [3.0, 7.0] if meets else None
            if meets:
                mode.follow(TakePart(0, Sync((0,), "parameters")))
            worker.clock.side_effect = None
            mode.end_epoch(1)
    sent = [call.args[0] for call in worker.client.send.call_args_list]
    assert [each.transfer_s for each in sent if isinstance(each, LocalStepDone)] == [0.0, 0.5, 0.5]
