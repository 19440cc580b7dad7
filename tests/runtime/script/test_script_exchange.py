"""What the ranks of a script exchange beside gradients."""

from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from polyrhythm.runtime.script import script_exchange
from polyrhythm.runtime.script.script_exchange import LaneExchange, StepExchange
from polyrhythm.runtime.script.wrapper import Lane
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange


class Exchange(LaneExchange):
    """In synchronous mode, among members that are all there."""

    failure = generation = None  # type: ignore[assignment]

    def __init__(self, lanes: list[Lane]) -> None:
        self.lanes, self.reduces = lanes, True
        self._replica = Mock(floating=[torch.zeros(1)], counters=[])


@pytest.mark.parametrize(
    ("options", "shared"),
    [([{}], True), ([{"broadcast_buffers": False}], False), ([{"broadcast_buffers": False}, {}], True)],
)
def test_a_rank_keeps_its_own_buffers_where_the_script_wants_that(
    monkeypatch: pytest.MonkeyPatch, options: list[dict[str, Any]], shared: bool
) -> None:
    """As a queue of what it has seen; at the end of an epoch all had that of the first rank."""
    handed: list[Any] = []
    monkeypatch.setattr(script_exchange, "hand_over_tensors", lambda *given: handed.append(given))
    Exchange([Lane(nn.BatchNorm1d(1), each) for each in options]).share_buffers()
    assert bool(handed) == shared


@pytest.mark.parametrize("knows_ranks", [False, True])
def test_without_a_wrapper_a_script_that_knows_of_ranks_shares_buffers_itself(
    monkeypatch: pytest.MonkeyPatch, knows_ranks: bool
) -> None:
    handed: list[Any] = []
    monkeypatch.setattr(script_exchange, "hand_over_tensors", lambda *given: handed.append(given))
    monkeypatch.setattr(DDPExchange, "__init__", lambda *_: None)
    monkeypatch.setattr(StepExchange, "failure", None)
    monkeypatch.setattr(StepExchange, "generation", None)
    given: Any = None
    exchange = StepExchange(given, 0, given, given, knows_ranks)
    exchange.reduces, exchange._replica = True, Mock(floating=[torch.zeros(1)], counters=[])
    exchange.share_buffers()
    assert bool(handed) != knows_ranks


@pytest.mark.parametrize(("options", "kept"), [({}, 7.0), ({"broadcast_buffers": False}, 3.0)])
def test_nor_does_it_take_those_of_the_first_rank_as_the_session_begins(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], kept: float
) -> None:
    """Only then: after a rollback its own may be what the job goes back from."""
    exchange = Exchange([Lane(nn.BatchNorm1d(1), options)])
    (buffer,) = exchange._replica.floating
    monkeypatch.setattr(DDPExchange, "agree", lambda *_: buffer.fill_(7.0))
    buffer.fill_(3.0)
    exchange.agree([0, 1], [0])
    assert buffer.item() == kept
    exchange.agree([0, 1], [0])
    assert buffer.item() == 7.0
