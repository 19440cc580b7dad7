"""A worker's side of collectives: when the coordinator's word ends them."""

from datetime import timedelta
from typing import Any, cast
from unittest.mock import Mock

import torch
from torch import nn

from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.replica import ScriptReplica


class Group:
    """Notes what was given up."""

    def __init__(self) -> None:
        self.aborted: list[tuple[str, str]] = []
        self.meanwhile: Any = None

        self.beside: Any = None

    def step(self) -> None:
        """Of no interest."""

    bind = set_generation = Mock()

    def abort(self, reason: str, prefix: str) -> None:
        self.aborted.append((reason, prefix))


def exchange_of(group: Group) -> DDPExchange:
    model = nn.Linear(1, 1)
    exchange = DDPExchange(ScriptReplica(model, torch.optim.SGD(model.parameters(), lr=0.1)), 0, timedelta(seconds=1))
    exchange.group = cast(Any, group)
    return exchange


def test_a_cut_waits_for_the_steps_that_whoever_is_gone_has_taken_part_in() -> None:
    """The last of them may be under way when the word comes, and succeeds."""
    group = Group()
    exchange = exchange_of(group)
    for steps in range(3):
        exchange.complete(steps)
    exchange.cut("phase-1", "rank 1 is gone", after=3)
    assert not group.aborted
    exchange.complete(3)
    assert group.aborted == [("rank 1 is gone", "phase-1")]


def test_a_cut_behind_those_steps_ends_what_is_under_way_at_once() -> None:
    group = Group()
    exchange = exchange_of(group)
    exchange.complete(3)
    exchange.cut("phase-1", "rank 1 is gone", after=3)
    assert group.aborted == [("rank 1 is gone", "phase-1")]


def test_losses_are_read_while_a_step_waits_for_its_last_collective() -> None:
    """Its group is told what to do beside as the members meet."""
    group, read = Group(), Mock()
    exchange = exchange_of(group)
    exchange.beside = read
    exchange.meet(Mock(), (0, 1), "phase-1")
    assert group.beside is read


def test_something_can_be_done_meanwhile_only_if_gradients_are_to_be_exchanged() -> None:
    group, done = Group(), []
    exchange = exchange_of(group)
    assert not exchange.meanwhile(lambda: done.append("not reducing"))
    assert vars(group)["meanwhile"] is None
    exchange.reduces = True
    assert exchange.meanwhile(lambda: done.append("waiting"))
    assert group.meanwhile is not None
    group.meanwhile()
    assert done == ["waiting"]
    exchange.group = None
    assert not exchange.meanwhile(lambda: done.append("apart"))
