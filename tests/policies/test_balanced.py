"""Balanced BSP on clusters of a few lines: a round lasts as long as its slowest step, and everyone is told of all."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import Cluster, Joined, Left, LeftReason, Proceed, Report, Sync
from polyrhythm.core.workload import divide
from polyrhythm.errors import SpecError
from polyrhythm.policies import Balanced, parse_policy
from polyrhythm.policies.balanced import known_times

BATCH = 32
quiet = settings(max_examples=60, deadline=None, derandomize=True, database=None)
StepSeconds = Callable[[int, int], float]
"""Seconds of a step of this worker with so many samples."""


@dataclass
class Rounds:
    """A cluster that makes rounds under a policy."""

    policy: Balanced
    step_s: StepSeconds
    state: Any
    now_s: float = 0.0
    shares: dict[int, int] = field(default_factory=dict)
    clock: int = 0

    @classmethod
    def of(cls, workers: int, step_s: StepSeconds, policy: Balanced | None = None) -> "Rounds":
        policy = policy or Balanced()
        rounds = cls(policy, step_s, policy.init(Cluster(workers, BATCH)))
        rounds.tell(Joined(tuple(range(workers)), 0.0))
        return rounds

    def tell(self, event: Joined | Report | Left) -> tuple[Any, ...]:
        self.state, decisions = self.policy.decide(self.state, event)
        for decision in decisions:
            if isinstance(decision, Proceed):
                equal = (BATCH,) * len(decision.workers)
                self.shares.update(zip(decision.workers, decision.shares or equal, strict=True))
        return decisions

    def go(self, rounds: int = 1) -> float:
        """Samples a second of so many rounds."""
        begun_s, samples = self.now_s, 0
        for _ in range(rounds):
            samples += self._round()
        return samples / (self.now_s - begun_s)

    def _round(self) -> int:
        shares, self.clock = dict(self.shares), self.clock + 1
        steps = sorted((self.step_s(worker, share), worker) for worker, share in shares.items())
        begun_s = self.now_s
        for step_s, worker in steps:
            self.now_s = begun_s + step_s
            decisions = self.tell(Report(worker, self.clock, self.now_s, shares[worker], step_s))
        sync = decisions[0]
        assert isinstance(sync, Sync)
        assert sync.weights is None or dict(zip(sync.workers, sync.weights, strict=True)) == shares
        assert sum(self.shares.values()) == BATCH * len(self.shares)
        return sum(shares.values())

    def leave(self, worker: int) -> None:
        del self.shares[worker]
        self.tell(Left(worker, self.now_s, self.clock))


def speeds(*of: float) -> StepSeconds:
    return lambda worker, samples: samples / of[worker]


def test_one_worker_four_times_slower() -> None:
    rounds = Rounds.of(4, speeds(100, 100, 25, 100))
    assert rounds.go(1) == pytest.approx(100)
    rounds.go(9)
    assert rounds.go(10) >= 0.97 * 325
    assert rounds.state.changes == 1


@pytest.mark.parametrize("fixed_s", [0.05, 0.3])
def test_a_fixed_part_is_learned_from_unequal_shares(fixed_s: float) -> None:
    """Time in proportion to samples is the first guess; the second has the right line."""
    rounds = Rounds.of(4, lambda worker, samples: fixed_s + samples / (25 if worker == 2 else 100))
    rounds.go(20)
    best_s = (4 * BATCH + fixed_s * 325) / 325
    assert rounds.go(10) >= 0.95 * 4 * BATCH / best_s
    assert rounds.state.changes <= 4


def test_a_straggler_that_comes_and_goes() -> None:
    slow = [False]
    rounds = Rounds.of(4, lambda worker, samples: samples / (25 if slow[0] and worker == 1 else 100))
    rounds.go(40)
    assert rounds.state.changes == 0
    slow[0] = True
    rounds.go(10)
    assert rounds.go(10) >= 0.95 * 325
    slow[0] = False
    rounds.go(10)
    assert rounds.go(10) >= 0.95 * 400
    assert set(rounds.shares.values()) == {BATCH}


def test_a_death_and_a_join() -> None:
    rounds = Rounds.of(4, speeds(100, 100, 25, 100, 50))
    rounds.go(20)
    rounds.leave(0)
    rounds.go(1)
    assert rounds.go(10) >= 0.95 * 225
    rounds.tell(Joined((4,), rounds.now_s, rounds.clock))
    rounds.go(15)
    assert rounds.go(5) >= 0.95 * 275


def test_who_has_finished_comes_back_to_its_share() -> None:
    rounds = Rounds.of(2, speeds(90, 30))
    rounds.go(10)
    shares = dict(rounds.shares)
    assert shares == {0: 48, 1: 16}
    for worker in (0, 1):
        rounds.tell(Left(worker, rounds.now_s, rounds.clock, "finished"))
    (proceed,) = rounds.tell(Joined((0, 1), rounds.now_s, rounds.clock))
    assert proceed == Proceed((0, 1), shares=(48, 16))


@pytest.mark.parametrize("workers", [2, 4, 8, 16])
@pytest.mark.parametrize("deviation", [0.02, 0.1, 0.3])
@pytest.mark.parametrize("seed", range(3))
def test_noise_changes_nothing(workers: int, deviation: float, seed: int) -> None:
    noise = random.Random(seed)
    rounds = Rounds.of(workers, lambda worker, samples: samples / 100 * noise.lognormvariate(0, deviation))
    rounds.go(400)
    assert rounds.state.changes == 0


@quiet
@given(
    step_s=st.floats(1e-4, 100),
    workers=st.integers(1, 9),
    rounds=st.integers(1, 30),
    fixed=st.floats(0, 1),
)
def test_equal_workers_keep_equal_shares(step_s: float, workers: int, rounds: int, fixed: float) -> None:
    cluster = Rounds.of(workers, lambda worker, samples: step_s * (fixed + samples))
    cluster.go(rounds)
    assert cluster.state.changes == 0


@quiet
@given(
    of=st.lists(st.floats(1, 20), min_size=2, max_size=8),
    most=st.sampled_from([float("inf"), 40, 64]),
    seed=st.integers(0, 99),
)
def test_shares_always_add_up_and_keep_their_bounds(of: list[float], most: float, seed: int) -> None:
    noise = random.Random(seed)
    rounds = Rounds.of(len(of), lambda w, b: b / of[w] * noise.lognormvariate(0, 0.1), Balanced(most))
    for _ in range(30):
        rounds.go()
        assert 1 <= min(rounds.shares.values()) <= max(rounds.shares.values()) <= max(most, BATCH)


def test_weights_of_an_uneven_end_are_those_of_bsp_under_equal_shares(drive: Any) -> None:
    decided = drive(Balanced(), 2, Report(0, 1, 1.0, samples=1), Report(1, 1, 2.0, samples=0))
    assert decided[-1] == (Sync((0, 1)), Proceed((0, 1)))


@pytest.mark.parametrize("most", ["0", "-3", "2.5", "nan"])
def test_a_largest_share_that_is_none(most: str) -> None:
    with pytest.raises(SpecError, match="most must be a whole number of at least 1, or inf"):
        parse_policy(f"balanced:{most}")


def test_the_largest_share_holds() -> None:
    rounds = Rounds.of(2, speeds(90, 30), Balanced(40))
    rounds.go(10)
    assert rounds.shares == {0: 40, 1: 24}
    assert parse_policy("balanced:40") == Balanced(40)
    assert rounds.policy.figures(rounds.state) == {"largest_share": 40, "smallest_share": 24, "changes": 1}


def test_no_share_is_below_the_least() -> None:
    """Batch norm can make nothing of one sample; an epoch's end is cut like the shares."""
    policy = Balanced()
    rounds = Rounds(policy, speeds(40.0, 40.0, 1.0), policy.init(Cluster(3, BATCH, least_share=2)))
    rounds.tell(Joined((0, 1, 2), 0.0))
    rounds.go(8)
    assert rounds.shares[2] == 2
    assert divide(9, (45, 49, 2)) == (3, 4, 2)
    one_each = Balanced().init(Cluster(3, 1, least_share=2))
    assert Balanced().decide(one_each, Joined((0, 1, 2), 0.0))[1] == (Proceed((0, 1, 2)),)


@pytest.mark.parametrize(("reason", "kept"), [("died", [0]), ("finished", [0, 1])])
def test_transfers_are_those_of_a_worker_and_not_of_its_rank(reason: LeftReason, kept: list[int]) -> None:
    """Who takes the rank of one that has died may be on another host."""
    policy = Balanced(risk=0.02)
    state, _ = policy.decide(policy.init(Cluster(2, 8)), Joined((0, 1), 0.0))
    for clock in range(1, 9):
        for worker in (0, 1):
            state, _ = policy.decide(state, Report(worker, clock, 2.0 * clock, 8, 1.0, 0.5))
    state, _ = policy.decide(state, Left(1, 20.0, 8, reason))
    assert list(state.transfers) == kept


def test_nor_of_one_that_has_died_after_its_epoch() -> None:
    policy = Balanced(risk=0.02)
    state, _ = policy.decide(policy.init(Cluster(2, 8)), Joined((0, 1), 0.0))
    for worker in (0, 1):
        state, _ = policy.decide(state, Report(worker, 1, 2.0, 8, 1.0, 0.5))
    state, _ = policy.decide(state, Left(1, 3.0, 1, "finished"))
    state, _ = policy.decide(state, Joined((1,), 4.0))
    assert list(state.transfers) == [0]


def test_what_is_known_of_many_is_read_once() -> None:
    """`auto` says it for each of all workers who leave at the end of an epoch."""
    known = "/".join(["0.1", "-", "0.4~0.2"])
    assert known_times(known, 8) is known_times("".join(known), 8)
    assert known_times(known, 8) != known_times(known, 4)
