"""What a server adds up: the same bits in every order of arrival, and nothing that does not belong together."""

from itertools import permutations
from unittest.mock import Mock

import pytest
import torch

from polyrhythm.errors import FrameError
from polyrhythm.runtime.server.server_reduce import SumAcceptor, Sums
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.shard_protocol import Add, Summed, Welcome

ROUNDED = (1e8, 1.0, -1e8)  # in float32 their sum depends on the order


class Member:
    """A worker at a server."""

    def __init__(self, sums: Sums, rank: int) -> None:
        self.rank = rank
        self.channel = Mock(spec=Channel, peer=f"sums {rank}")
        self.door = SumAcceptor(sums, self.channel)

    def send(self, epoch: str, number: int, *values: float, size: int = 2, elements: int = 2) -> None:
        """Contribute these numbers, or nothing."""
        message = Add(epoch, number, self.rank, size, elements)
        if values:
            room = self.door.destination(message, Payload("float32", len(values)))
            room[:] = torch.tensor(values).view(torch.uint8).numpy().data
        self.door.received(message)

    @property
    def received(self) -> list[tuple[Summed, list[float]]]:
        """Sums with their numbers."""
        return [(c.args[0], torch.frombuffer(c.args[1], dtype=torch.float32).tolist()) for c in self._calls]

    @property
    def _calls(self) -> list[Mock]:
        return list(self.channel.send.call_args_list)


def members(count: int = 2, model_bytes: int = 64) -> tuple[Sums, list[Member]]:
    sums = Sums(lambda: model_bytes)
    return sums, [Member(sums, rank) for rank in range(count)]


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_the_order_of_arrival_does_not_matter(order: tuple[int, ...]) -> None:
    _, all_members = members(3)
    for rank in order:
        all_members[rank].send("one", 0, ROUNDED[rank], 1.0, size=3)
    assert all(member.received == [(Summed("one", 0), [0.0, 3.0])] for member in all_members)


def test_who_contributes_nothing_gets_the_sum() -> None:
    _, (first, second) = members()
    first.send("one", 0)
    second.send("one", 0, 1.0, 2.0)
    first.send("one", 1)
    second.send("one", 1)
    assert first.received == second.received == [(Summed("one", 0), [1.0, 2.0]), (Summed("one", 1), [0.0, 0.0])]


def test_an_epoch_that_is_over_leaves_nothing_and_disturbs_nobody() -> None:
    """The second member's last contribution of the first epoch is late: the other one has gone on."""
    sums, (first, second) = members()
    first.send("one", 0, 1.0, 1.0)
    first.send("two", 0, 2.0, 2.0)
    second.send("one", 1, 3.0, 3.0)
    second.send("two", 0, 4.0, 4.0)
    assert first.received == second.received == [(Summed("two", 0), [6.0, 6.0])]
    assert not sums.open


@pytest.mark.parametrize(
    "wrong",
    [
        Add("one", 0, rank=0, size=2, elements=2),
        Add("one", 0, rank=2, size=2, elements=2),
        Add("one", 0, rank=-1, size=2, elements=2),
        Add("one", 0, rank=1, size=3, elements=2),
        Add("one", 0, rank=1, size=2, elements=3),
        Add("one", 0, rank=1, size=2, elements=0),
        Add("one", 0, rank=1, size=2, elements=2**40),
        Welcome(),
    ],
    ids=repr,
)
def test_what_does_not_belong_together_is_refused(wrong: Add | Welcome) -> None:
    _, (first, second) = members()
    first.send("one", 0, 1.0, 2.0)
    with pytest.raises(FrameError):
        second.door.received(wrong)


@pytest.mark.parametrize(
    ("message", "payload"),
    [
        (Add("one", 0, 0, 2, 2), Payload("float32", 3)),
        (Add("one", 0, 0, 2, 2), Payload("float16", 2)),
        (Add("one", 0, 0, 2, 2**30), Payload("float32", 2**30)),
        (Welcome(), Payload("float32", 2)),
    ],
)
def test_there_is_room_for_contributions_only(message: Add | Welcome, payload: Payload) -> None:
    with pytest.raises(FrameError):
        members()[1][0].door.destination(message, payload)
