from pathlib import Path

import pytest
import torch

from polyrhythm.doctor.watch.ring import RingRecord, RingWriter, read_ring
from polyrhythm.doctor.watch.watcher import FOLDER, StepClock, watched_folder


class Hands:
    """A clock that a test moves, in nanoseconds."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000

    def __call__(self) -> int:
        return self.now_ns

    def move(self, milliseconds: int) -> int:
        """What it showed before."""
        before_ns, self.now_ns = self.now_ns, self.now_ns + milliseconds * 1_000_000
        return before_ns


class Watched:
    """A clock of steps, and what it has written."""

    def __init__(self, folder: Path) -> None:
        self.hands, self.path = Hands(), folder / "rank-00000.ring"
        self.clock = StepClock(RingWriter(self.path, 0, 2, "", ""), self.hands)
        self.passes = 0

    def step(self, loading: int = 0, forward: int = 0, backward: int = 0, exchange: int = 0) -> None:
        """One step; its first gradient is ready when half of the backward pass is over."""
        self.clock.add("loading", self.hands.move(loading))
        self.clock.forward_begins()
        self.hands.move(forward)
        self.clock.forward_is_over()
        began_ns = self.hands.move(backward)
        self.hands.move(exchange)
        self.passes += 1  # no two take as many nanoseconds
        self.clock.backward_is_over(began_ns, [backward * 1_000_000 + self.passes, backward * 500_000])

    @property
    def records(self) -> list[RingRecord]:
        return read_ring(self.path)[1]


@pytest.fixture
def watched(tmp_path: Path) -> Watched:
    return Watched(tmp_path)


def test_a_step_is_split_into_what_it_took(watched: Watched) -> None:
    watched.step(loading=2, forward=10, backward=20, exchange=5)
    (one,) = watched.records
    assert one.end_s - one.arrival_s == pytest.approx(0.005)
    assert (one.loading_s, one.forward_s, one.backward_s) == pytest.approx((0.002, 0.01, 0.02))


def test_what_is_loaded_after_a_pass_belongs_to_the_next_step(watched: Watched) -> None:
    watched.step(loading=1)
    watched.step(loading=7)
    assert [one.loading_s for one in watched.records] == pytest.approx([0.001, 0.007])
    assert [one.step for one in watched.records] == [0, 1]


def test_buffers_that_a_forward_pass_exchanges_are_no_computing(watched: Watched) -> None:
    watched.clock.forward_begins()
    watched.clock.add("other", watched.hands.move(3))
    watched.hands.move(4)
    watched.clock.forward_is_over()
    watched.clock.backward_is_over(watched.hands(), [0])
    (one,) = watched.records
    assert (one.forward_s, one.other_s) == pytest.approx((0.004, 0.003))


@pytest.mark.parametrize(("ready_ms", "exchange_ms"), [(19, 10), (999, 0)])
def test_a_rank_arrives_within_its_pass_whenever_it_was_held_up(
    watched: Watched, ready_ms: int, exchange_ms: int
) -> None:
    watched.clock.forward_is_over()
    watched.hands.move(20)
    watched.clock.backward_is_over(watched.hands.move(10), [ready_ms * 1_000_000])
    (one,) = watched.records
    assert one.end_s - one.arrival_s == pytest.approx(exchange_ms / 1000)


def test_a_pass_without_the_wrapper_is_no_step(watched: Watched) -> None:
    watched.step(forward=10, backward=20, exchange=5)
    watched.clock.backward_is_over(watched.hands.move(10), [20_000_001, 10_000_000])
    assert len(watched.records) == 1


def test_a_last_gradient_as_late_as_in_the_step_before_is_one_of_another_step(watched: Watched) -> None:
    for first in (10, 11):
        watched.clock.forward_is_over()
        watched.clock.backward_is_over(watched.hands.move(10), [20, first])
    assert len(watched.records) == 2


def test_a_script_that_averages_by_itself_makes_steps_too(watched: Watched) -> None:
    for waited in (3, 4):
        watched.clock.add("other", watched.hands.move(waited))
        watched.clock.step_without_wrapper()
    watched.clock.step_without_wrapper()
    assert [one.other_s for one in watched.records] == pytest.approx([0.003, 0.004])


@pytest.mark.parametrize(
    "batch",
    [torch.zeros(8, 3), (torch.zeros(8, 3), torch.zeros(8)), {"x": torch.zeros(8, 3)}, [{"x": torch.zeros(8)}]],
)
def test_the_size_of_a_mini_batch_is_seen(watched: Watched, batch: object) -> None:
    watched.clock.saw_batch(batch)
    assert read_ring(watched.path)[0].batch == 8


@pytest.mark.parametrize("batch", [None, [], "text", {}])
def test_a_mini_batch_of_another_kind_counts_as_one(watched: Watched, batch: object) -> None:
    watched.clock.saw_batch(batch)
    assert read_ring(watched.path)[0].batch == 1


def test_only_ranks_of_a_watched_job_write(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("RANK", "LOCAL_RANK", FOLDER):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    assert watched_folder() is None
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert watched_folder() == tmp_path
