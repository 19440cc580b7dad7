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

    def step(self, loading: int = 0, forward: int = 0, backward: int = 0, exchange: int = 0) -> None:
        """One step; torch's stamps are told as in the next forward pass."""
        self.clock.add("loading", self.hands.move(loading))
        self.clock.add("forward", self.hands.move(forward))
        began_ns = self.hands.move(backward)
        arrived_ns = self.hands.move(exchange)
        self.clock.backward_is_over(began_ns)
        self.clock.stamped(arrived_ns, self.hands())

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


def test_stamps_of_an_earlier_pass_are_not_taken_for_this_one(watched: Watched) -> None:
    old_ns = watched.hands.move(50)
    watched.clock.backward_is_over(watched.hands.move(10))
    watched.clock.stamped(old_ns, old_ns + 1)
    watched.clock.stamped(0, 0)
    assert watched.records == []


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
