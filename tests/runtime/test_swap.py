"""Parameters that come while gradients go."""

from collections import deque
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import torch

from polyrhythm.core import Traits
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import Cancelled, Go, Over, Pushed
from polyrhythm.runtime.wire.worker_buffers import WorkerBuffers
from polyrhythm.runtime.worker.context import WorkerContext
from polyrhythm.runtime.worker.losses.heard import Losses
from polyrhythm.runtime.worker.parameter_server import VOID, ParameterServerMode
from polyrhythm.training.compression import NOTHING
from polyrhythm.training.optimizer import OptimizerState
from tests.runtime.shard_bench import MakeBench

EMPTY = OptimizerState({}, {})


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("compress", ["none", "bf16"])
def test_what_comes_is_whole_and_without_what_goes(make: MakeBench, shards: int, compress: str) -> None:
    bench = make("tcp", shards)
    worker, other = bench.worker(0, compress=compress), bench.worker(1)
    worker.upload(torch.ones(bench.size), EMPTY, version=3)
    for number in range(3):
        out = torch.full((bench.size,), torch.nan)
        assert worker.swap(number, torch.full((bench.size,), 0.25), out) == 3 + number
        bench.until(lambda number=number: (0, number) in bench.arrived)
        assert torch.equal(out, torch.full((bench.size,), 1.0 - 0.25 * number))
        bench.apply((0, number))
    assert torch.equal(bench.pull(other, 6), torch.full((bench.size,), 0.25))


def test_a_gradient_on_its_way_keeps_its_slot(make: MakeBench) -> None:
    """Both directions need room at the server, and so does a gradient that nobody has applied yet."""
    bench = make("tcp", 1, sizes=(300_000,))
    worker, out = bench.worker(0), torch.empty(300_000)
    worker.upload(torch.zeros(bench.size), EMPTY, version=0)
    gradients = torch.randn(3, bench.size, generator=torch.Generator().manual_seed(1))
    for number, gradient in enumerate(gradients):
        worker.swap(number, gradient, out)
        assert not out.any()
    bench.until(lambda: len(bench.arrived) == len(gradients))
    bench.apply((0, 1))
    assert torch.equal(bench.pull(worker, 1), -gradients[1])


class FakeLink:
    """Servers that are at version 7 when they are asked."""

    full_duplex = True

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def poll(self) -> None:
        return None

    def send(self, message: Pushed) -> None:
        self.calls.append(message.read)

    def swap(self, number: int) -> int:
        self.calls.append("swap")
        return 7

    def take_swapped(self) -> None:
        self.calls.append("take")

    def push(self, number: int) -> int | None:
        self.calls.append("push")
        return None

    def pull(self, version: int) -> None:
        self.calls.append(f"pull {version}")


@pytest.mark.parametrize(
    ("swaps", "calls"),
    [
        (True, ["pull 5", "swap", 5, "take", "swap", 7, "pull 9"]),
        (False, ["pull 5", "push", None, "pull 8", "push", None, "pull 9"]),
    ],
)
def test_a_worker_says_which_version_its_step_started_from(swaps: bool, calls: list[Any]) -> None:
    link, numbers = FakeLink(), [torch.zeros(2)]
    replica = replica_of(numbers)
    follow: Any = None
    context = WorkerContext(
        0, cast(Any, link), cast(Any, replica), follow, lambda: 0.0, follow, follow, follow, losses=Losses()
    )
    side = ParameterServerMode(context, Traits(reads_early=swaps))
    for number, version in enumerate((5, 8)):
        side.follow(Go(number, version, (), False))
        side.before_step(4)
    side.end_epoch(9)
    side.follow(Go(2, 9, (), False))
    assert link.calls == calls


def test_a_slot_that_is_being_filled_is_not_free() -> None:
    buffer, channel = torch.zeros(2), SimpleNamespace(sending=False)
    place = WorkerBuffers(cast(Any, channel), NOTHING, vectors=[buffer], incoming=buffer)
    assert place.free_buffer() == 1


class BusyLink(FakeLink):
    """What has come while the worker computed."""

    def __init__(self, *messages: Any) -> None:
        super().__init__()
        self.inbox = deque(messages)

    def poll(self) -> Any:
        return self.inbox.popleft() if self.inbox else None


def replica_of(parameters: list[torch.Tensor]) -> SimpleNamespace:
    given = {"settings": tuple, "hide_gradients": lambda: None, "taken_over": 0, "damps": False}
    given["of_groups_with"] = lambda *_: set()
    return SimpleNamespace(**given, parameters=parameters, optimizer=SimpleNamespace(state={}))


def mode_with(link: FakeLink) -> ParameterServerMode:
    follow: Any = None
    replica = replica_of([torch.zeros(2)])
    context = WorkerContext(
        0, cast(Any, link), cast(Any, replica), follow, lambda: 0.0, follow, follow, follow, losses=Losses()
    )
    return ParameterServerMode(context, Traits(cancels=True))


def granted(number: int) -> Go:
    return Go(number, number, (SampleRange(0, 4 * number, 4 * number + 4),), False)


def test_a_step_that_was_cancelled_before_it_began_leaves_no_trace() -> None:
    side = mode_with(link := BusyLink(Cancelled(1)))
    side.follow(granted(1))
    assert (side._context.may_step, link.calls, side.draw()) == (False, [], None)
    side.follow(granted(2))
    drawn = side.draw()
    assert (side._context.may_step, link.calls, drawn and drawn.before) == (True, ["pull 2"], 8)


def test_a_mini_batch_that_was_fetched_for_it_is_void() -> None:
    side = mode_with(link := BusyLink())
    side.follow(granted(1))
    side.follow(granted(2))
    first, second = side.draw(), side.draw()
    side.before_step(4)
    link.inbox.append(Cancelled(3))
    side.follow(msgspec.structs.replace(granted(3), sample_ranges=()))
    assert first
    assert second
    assert (first.generation, second.generation) == (0, VOID)


def test_a_message_of_another_kind_is_kept_for_later() -> None:
    side = mode_with(BusyLink(Over(1)))
    side.follow(granted(1))
    assert (side._context.may_step, list(side._context.pending)) == (True, [Over(1)])
