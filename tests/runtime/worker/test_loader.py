"""The loader with a source of its own: what it yields, in which order, and what it leaves out."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.worker.context import DrawnBatch
from polyrhythm.runtime.worker.loader import Accumulation, SessionLoader
from tests.runtime.jobs import Numbered


class Script:
    """Grants mini-batches by turns of the epoch; None ends a turn, a number stands for a change of phase."""

    def __init__(self, turns: list[list[tuple[int, int] | None]]) -> None:
        self.generation = 0
        self.turns: Iterator[list[tuple[int, int] | None]] = iter(turns)
        self.left = len(turns)
        self.begun: list[tuple[int, int, int, int]] = []
        self.starts: list[int] = []
        self.lasts: list[bool] = []
        self.parts: list[float] = []
        self.weight: float | None = None
        self.skipped: list[int] = []

    def begin_epoch(self, ready: Ready) -> None:
        self.begun.append((ready.epoch, ready.dataset_samples, ready.batch_size, ready.ahead))
        self.turn = iter(next(self.turns))

    def draw(self) -> DrawnBatch | None:
        granted = next(self.turn, None)
        if granted is None:
            return None
        start, stop = granted
        return DrawnBatch((SampleRange(0, start, stop),), start, 1, stop - start, self.generation, self.weight)

    def dealt(self, draw: DrawnBatch, part: float, last: bool) -> bool:
        if draw.generation != self.generation:
            return False
        self.starts.append(draw.sample_ranges[0].start)
        self.parts.append(part)
        self.lasts.append(last)
        return True

    def end_epoch(self) -> bool:
        self.left -= 1
        if self.left:
            self.turn = iter(next(self.turns))
        return not self.left

    def skip_step(self, samples: int) -> None:
        self.skipped.append(samples)


def loader(script: Script, **options: Any) -> SessionLoader[Any]:
    return SessionLoader(Numbered(20), 4, script, Accumulation(script), **{"shuffle": False, **options})


def indices(batches: SessionLoader[Any]) -> list[list[int]]:
    return [index.tolist() for _, _, index in batches]


def test_an_epoch_may_take_several_turns() -> None:
    script = Script([[(0, 4), (4, 6)], [(12, 16)]])
    assert indices(loader(script)) == [[0, 1, 2, 3], [4, 5], [12, 13, 14, 15]]
    assert script.begun == [(0, 20, 4, 0)]
    assert script.starts == [0, 4, 12]


@pytest.mark.parametrize(("options", "length"), [({}, 5), ({"workers": 2}, 3), ({"workers": 2, "accumulate": 2}, 6)])
def test_its_length_is_that_of_an_even_share(options: dict[str, Any], length: int) -> None:
    assert len(loader(Script([]), **options)) == length


def test_samples_cannot_be_injected_into_unequal_shares() -> None:
    script = Script([[(0, 4)]])
    script.weight = 0.5
    with pytest.raises(UsageError, match="injection needs mini-batches of one size"):
        indices(loader(script, inject=lambda batch, epoch: batch))


def test_parts_of_a_step_are_as_equal_as_can_be() -> None:
    script = Script([[(0, 4), (4, 7), (7, 8)]])
    assert indices(loader(script, accumulate=2)) == [[0, 1], [2, 3], [4], [5, 6], [7]]
    assert script.lasts == [False, True, False, True, True]
    assert script.parts == pytest.approx([1, 1, 2 / 3, 4 / 3, 2])
    assert script.skipped == [4, 3, 1], "this script makes no steps"


def test_what_was_granted_in_an_earlier_phase_is_void() -> None:
    script = Script([[(0, 4), (4, 8), (8, 12)], [(16, 20)]])
    found = []
    for _, _, index in loader(script, num_workers=1, prefetch_factor=4, multiprocessing_context="fork"):
        found.append(index.tolist())
        script.generation += len(found) == 2
    assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [16, 17, 18, 19]]
    assert script.begun == [(0, 20, 4, 4)]


@pytest.mark.parametrize(("workers", "factor", "ahead"), [(0, None, 0), (2, None, 4), (2, 3, 6)])
def test_the_hub_is_told_what_is_fetched_in_advance(workers: int, factor: int | None, ahead: int) -> None:
    script = Script([[]])
    batches = loader(
        script, num_workers=workers, prefetch_factor=factor, multiprocessing_context="fork" if workers else None
    )
    assert indices(batches) == []
    assert script.begun == [(0, 20, 4, ahead)]


def test_a_second_thread_cannot_iterate_meanwhile() -> None:
    batches = loader(Script([[(0, 4), (4, 8)]]))
    first = iter(batches)
    next(first)
    with ThreadPoolExecutor(1) as other, pytest.raises(UsageError, match="is being iterated in another thread"):
        other.submit(list, batches).result()
    assert [index.tolist() for _, _, index in first] == [[4, 5, 6, 7]]


def test_an_epoch_each_may_be_iterated_by_another_thread() -> None:
    batches = loader(Script([[(0, 4)], [(4, 8)]]))
    with ThreadPoolExecutor(1) as other:
        assert len(other.submit(list, batches).result()) == 2


def test_the_order_depends_on_seed_and_epoch_alone() -> None:
    def orders(seed: int, first_epoch: int, epochs: int) -> list[list[int]]:
        batches = loader(Script([[(0, 20)]] * epochs), shuffle=True, seed=seed, first_epoch=first_epoch)
        found = []
        for _ in range(epochs):
            batches._source.left = 1  # type: ignore[attr-defined]
            found += indices(batches)
        return found

    torch.manual_seed(1)
    whole = orders(3, 0, 3)
    torch.manual_seed(2)
    assert orders(3, 1, 2) == whole[1:]
    assert orders(4, 0, 1) != whole[:1]
    assert len({tuple(order) for order in whole}) == 3
    assert all(sorted(order) == list(range(20)) for order in whole)
