"""Who is there: workers that join, finish, die before or after that, and come back with the others or alone."""

import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from polyrhythm.core import Cluster, Event, Joined, Left, Report
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies import DSSP, Balanced, SelSync
from polyrhythm.policies._lib.detector import Detector, DetectorState
from polyrhythm.policies._lib.epochs import still_known
from polyrhythm.policies._lib.roll import Roll
from polyrhythm.policies.auto.evidence import UNTIMED, JobTimes
from polyrhythm.policies.rlp.views import PhaseView


class Presence:
    """A random job: who is live, who stands at the end of its epoch, and who has made a step since it came."""

    def __init__(self, seed: int) -> None:
        self.random, self.time_s = random.Random(seed), 0.0
        self.live, self.away, self.gone = set[int](), set[int](), {0, 1, 2}
        self.known, self.untold, self.doubtful = set[int](), set[int](), set[int]()
        """Who has made a step since it came; who has died at the end of an epoch; who has come back from that with all
        others, so that nobody can know that it is another one.
        """
        self.clocks: dict[int, int] = {}

    def events(self, count: int) -> Iterator[Event]:
        while count > 0:
            self.time_s += 1.0
            if (event := self._next()) is not None:
                count -= 1
                yield event

    def _next(self) -> Event | None:
        if not self.live:
            return self._begin()
        what, worker = self.random.random(), self.random.choice(sorted(self.live))
        if what < 0.5:
            self.known.add(worker)
            self.doubtful.discard(worker)
            self.clocks[worker] += 1
            return Report(worker, self.clocks[worker], self.time_s, 4, 1.0, loss=1.0, grad_sq_norm=1.0)
        if what < 0.75:
            return self._left(worker, self.random.random() < 0.7)
        if what < 0.85:
            self._die_at_the_end()
            return None
        if not self.gone:
            return None
        newcomer = self.random.choice(sorted(self.gone))
        self.doubtful.discard(newcomer)
        return self._joined([newcomer])

    def _begin(self) -> Event:
        self._die_at_the_end()
        newcomers = {worker for worker in self.gone if self.random.random() < 0.3 or not self.away}
        workers, self.away = sorted(self.away | newcomers), set()
        self.doubtful |= self.untold & set(workers)
        return self._joined(workers)

    def _die_at_the_end(self) -> None:
        """Nobody is told."""
        for worker in sorted(self.away):
            if self.random.random() < 0.3:
                self.away.remove(worker)
                self.known.discard(worker)
                self.untold.add(worker)
                self.gone.add(worker)

    def _joined(self, workers: list[int]) -> Joined:
        clock = min((self.clocks[worker] for worker in self.live), default=0)
        self.live.update(workers)
        self.gone.difference_update(workers)
        self.untold.difference_update(workers)
        self.clocks.update(dict.fromkeys(workers, clock))
        return Joined(tuple(workers), self.time_s, clock)

    def _left(self, worker: int, finished: bool) -> Left:
        self.live.remove(worker)
        (self.away if finished else self.gone).add(worker)
        self.known.difference_update(() if finished else (worker,))
        self.doubtful.difference_update(() if finished else (worker,))
        return Left(worker, self.time_s, self.clocks[worker], "finished" if finished else "died")


class Watched:
    """Something that learns of workers, and of whom it knows something."""

    def hear(self, event: Event) -> None:
        raise NotImplementedError

    def known(self) -> set[int]:
        raise NotImplementedError


class DetectorWatched(Watched):
    def __init__(self) -> None:
        self.detector, self.watch, self.roll = Detector(window=1), DetectorState(), Roll()

    def hear(self, event: Event) -> None:
        self.watch = self.detector.after(self.watch, event, len(self.roll.live_workers))
        self.roll = self.roll.after(event)

    def known(self) -> set[int]:
        assert set(self.watch.means) == set(self.watch.sizes)
        return set(self.watch.means)


class TimesWatched(Watched):
    def __init__(self) -> None:
        self.times = JobTimes(4)

    def hear(self, event: Event) -> None:
        for _ in range(UNTIMED + 1 if isinstance(event, Report) else 1):
            self.times = self.times.after(event, alone=False)

    def known(self) -> set[int]:
        return {worker for worker, one in self.times.workers.items() if one.time.steps}


class PhaseWatched(Watched):
    def __init__(self) -> None:
        self.view = PhaseView()
        self.signals = self.view.init()

    def hear(self, event: Event) -> None:
        self.signals = self.view.hear(self.signals, event)

    def known(self) -> set[int]:
        return {worker for worker, step_s in self.signals.steps.items() if step_s < float("inf")}


class PolicyWatched(Watched):
    def __init__(self, policy: Any, name: str) -> None:
        self.policy, self.name = policy, name
        self.state = policy.init(Cluster(3, batch_size=4))

    def hear(self, event: Event) -> None:
        self.state, _ = self.policy.decide(self.state, event)

    def known(self) -> set[int]:
        return set(getattr(self.state, self.name))


WATCHED: dict[str, Callable[[], Watched]] = {
    "detector": DetectorWatched,
    "auto": TimesWatched,
    "rlp": PhaseWatched,
    "dssp": lambda: PolicyWatched(DSSP(99, 99), "paces"),
    "selsync": lambda: PolicyWatched(SelSync(), "signals"),
}


@pytest.mark.parametrize("name", WATCHED)
@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 10**6))
def test_nobody_who_is_there_is_forgotten_and_nobody_who_is_gone_is_counted(name: str, seed: int) -> None:
    presence, watched = Presence(seed), WATCHED[name]()
    for event in presence.events(60):
        watched.hear(event)
        known = watched.known()
        assert known >= presence.known & (presence.live | presence.away), event
        if isinstance(event, Joined):
            assert not (presence.live - presence.known - presence.doubtful) & known, event


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 10**6))
def test_a_roll_has_all_who_are_there(seed: int) -> None:
    presence, roll = Presence(seed), Roll()
    for event in presence.events(60):
        roll = roll.after(event)
        assert set(roll.live_workers) == presence.live
        assert set(roll.away) >= presence.away
        assert not set(roll.away) & presence.live


def test_who_comes_while_others_are_live_is_new_and_takes_nobodys_place() -> None:
    known: WorkerMap[str] = WorkerMap()
    known = known.set_all((0, 1, 2), "paced")
    assert list(still_known(known, Joined((2,), 1.0), live=2)) == [0, 1]


def test_balanced_knows_nothing_of_one_that_comes_back_alone() -> None:
    policy = Balanced()
    state, _ = policy.decide(policy.init(Cluster(3, batch_size=8)), Joined((0, 1, 2), 0.0))
    for clock in range(1, 6):
        for worker, step_s in enumerate((1.0, 1.0, 4.0)):
            state, _ = policy.decide(state, Report(worker, clock, 4.0 * clock, 8, step_s))
    state, _ = policy.decide(state, Left(2, 21.0, 5, "finished"))
    assert list(state.times) == [0, 1, 2]
    state, _ = policy.decide(state, Joined((2,), 22.0, 5))
    assert list(state.times) == [0, 1]
