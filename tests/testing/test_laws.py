"""Each law can fail: one deliberately broken policy per law, and what the failure says."""

import random
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle
from typing import Any, ClassVar

import pytest

from polyrhythm.core import (
    Bounds,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Proceed,
    Report,
    Traits,
    Wake,
)
from polyrhythm.policies import ASP, BSP, SSP, KSync
from polyrhythm.policies._lib.barrier import Barrier
from polyrhythm.testing import ClusterScript, ConformanceError, Fault, LateJoin, ScriptPlayer, check, conformance
from polyrhythm.testing.laws import Breach, check_end


@dataclass(frozen=True)
class Plain(Policy[Any]):
    """ASP, to be broken."""

    name: ClassVar[str] = "plain"
    summary: ClassVar[str] = "asp"

    def init(self, cluster: Cluster) -> Any:
        return None

    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        return ASP().decide(state, event)


class CombinesTwice(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        state, decisions = super().decide(state, event)
        return state, (*decisions[:1], *decisions) if isinstance(event, Report) else decisions


class RestartsARunningWorker(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        return state, (Proceed((0, 0)),)


class ForgetsWhoWaited(BSP):
    def bounds(self, cluster: Cluster) -> Bounds:
        return Bounds()

    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        state, decisions = super().decide(state, event)
        if not isinstance(event, Left) or not state.waiting:
            return state, decisions
        return state.open(), (Proceed(tuple(state.waiting)),)


class NamesTheDead(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        if isinstance(event, Left):
            return state, (Proceed((event.worker,)),)
        return super().decide(state, event)


class ReturnsAList(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        return state, list(super().decide(state, event)[1])  # type: ignore[return-value]


class ForgetsToReturn(Plain):
    def decide(self, state: Any, event: Event) -> Any:
        return None


class WakesInThePast(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        state, decisions = super().decide(state, event)
        return state, (*decisions, Wake(event.time_s - 1)) if isinstance(event, Report) else decisions


class NeverEnds(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        return state, () if isinstance(event, Left | Report) else (Wake(event.time_s + 1),)


class CancelsWithoutSayingSo(KSync):
    traits: ClassVar[Traits] = Traits()


class TrainsReplicasWithoutSayingSo(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        workers = event.workers if isinstance(event, Joined) else (event.worker,) if isinstance(event, Report) else ()
        return state, (Proceed(workers, "replicas"),) if workers else ()


class CallsARandomSource(Plain):
    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        return random.random(), super().decide(None, event)[1]


class ChangesItsState(Plain):
    def init(self, cluster: Cluster) -> Any:
        return []

    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        if event not in state:
            state.append(event)
        return state, super().decide(None, event)[1]


class HoldsALock(Plain):
    lock = threading.Lock()

    def init(self, cluster: Cluster) -> Any:
        return self.lock


class ComparesByIdentity(Plain):
    class Token:
        pass

    token = Token()

    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        return self.token, super().decide(None, event)[1]


class PromisesTooLittleLead(SSP):
    def bounds(self, cluster: Cluster) -> Bounds:
        return Bounds(lead=self.s)


class PromisesNoStaleness(ASP):
    def bounds(self, cluster: Cluster) -> Bounds:
        return Bounds(staleness=0)


class WaitsForTheDead(BSP):
    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        return (state, ()) if isinstance(event, Left) else super().decide(state, event)


class IgnoresNewcomers(BSP):
    def decide(self, state: Barrier, event: Event) -> tuple[Barrier, Decisions]:
        return (
            (state, ()) if isinstance(event, Joined) and event.time_s and state.live else super().decide(state, event)
        )


class ChangesBetweenRuns(Plain):
    """Every call agrees with the call before it, but a run with the mark asks for an alarm more."""

    marks: ClassVar[Iterator[bool]]

    def init(self, cluster: Cluster) -> Any:
        return next(self.marks)

    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        decisions = super().decide(None, event)[1]
        return state, (*decisions, Wake(99.0)) if state and isinstance(event, Joined) else decisions


class DiffersInItsSecondRun(ChangesBetweenRuns):
    marks: ClassVar[Iterator[bool]] = cycle([False, True])


class DiffersInTheReplay(ChangesBetweenRuns):
    marks: ClassVar[Iterator[bool]] = cycle([False, False, True])


HEALTHY = ClusterScript(workers=2)
UNEVEN = ClusterScript(workers=2, durations=((1.0,), (5.0,)))
DEADLY = ClusterScript(workers=2, faults=(Fault(worker=0, step=1),))
LOSSY = ClusterScript(workers=3, durations=((5.0,), (1.0,), (3.0,)), faults=(Fault(worker=0, step=0),))
GROWING = ClusterScript(workers=2, arrivals=(LateJoin(time_s=0.5),))


BROKEN = [
    ("contract", CombinesTwice(), HEALTHY, "no gradient pending"),
    ("contract", RestartsARunningWorker(), HEALTHY, "still running"),
    ("contract", NamesTheDead(), DEADLY, "not live"),
    ("contract", ReturnsAList(), HEALTHY, "a tuple of decisions"),
    ("contract", ForgetsToReturn(), HEALTHY, "must return a state and decisions but returned None"),
    ("contract", WakesInThePast(), HEALTHY, "Wake asks for an alarm at"),
    ("contract", NeverEnds(), HEALTHY, "events and no end"),
    ("traits", CancelsWithoutSayingSo(k=1), HEALTHY, "cancels=True"),
    ("traits", TrainsReplicasWithoutSayingSo(), HEALTHY, "'replicas' in Traits"),
    ("pure", CallsARandomSource(), HEALTHY, "two calls"),
    ("pure", ChangesItsState(), HEALTHY, "changed the state"),
    ("picklable", HoldsALock(), HEALTHY, "cannot be pickled"),
    ("picklable", ComparesByIdentity(), HEALTHY, "unpickled copy"),
    ("bounds", PromisesTooLittleLead(s=1), UNEVEN, "the lead is 2, its bound 1"),
    ("bounds", PromisesNoStaleness(), HEALTHY, "the staleness is 1, its bound 0"),
    ("every gradient", ForgetsWhoWaited(), LOSSY, "named worker 1 and left a gradient of it pending"),
    ("no deadlock", WaitsForTheDead(), DEADLY, "workers 1 wait, and nothing more is due"),
    ("bounds", IgnoresNewcomers(), GROWING, "the lead is 2, its bound 1"),
    ("deterministic", DiffersInItsSecondRun(), HEALTHY, "a second run differs"),
    ("replayable", DiffersInTheReplay(), HEALTHY, "differs at line 2"),
]


@pytest.mark.parametrize(("law", "policy", "script", "reason"), BROKEN, ids=[type(row[1]).__name__ for row in BROKEN])
def test_a_broken_policy_fails(law: str, policy: Policy[Any], script: ClusterScript, reason: str) -> None:
    with pytest.raises(ConformanceError, match=reason) as failure:
        check(policy, script)
    first, *story = str(failure.value).splitlines()
    assert first.startswith(f"{policy.spec} breaks the law {law!r}: ")
    assert story[-1] == f"rerun: check(policy, {script})"


def test_samples_that_nobody_processed_fail() -> None:
    stage = ScriptPlayer(ASP(), HEALTHY).play()
    stage.processed.pop()
    with pytest.raises(Breach, match="every sample"):
        check_end(stage)


def test_samples_that_were_processed_twice_fail() -> None:
    stage = ScriptPlayer(ASP(), HEALTHY).play()
    stage.processed.append(stage.processed[0])
    with pytest.raises(Breach, match="every sample"):
        check_end(stage)


def test_work_left_without_a_death_fails() -> None:
    stage = ScriptPlayer(ASP(), HEALTHY).play()
    stage.workload.give_back(stage.processed.pop())
    with pytest.raises(Breach, match="nobody died"):
        check_end(stage)


def test_an_exception_of_the_policy_tells_its_story() -> None:
    class Crashes(Plain):
        def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
            return (state, ()) if isinstance(event, Joined) and 1 / event.time_s else super().decide(state, event)

    with pytest.raises(ZeroDivisionError) as failure:
        check(Crashes(), HEALTHY)
    assert "rerun: check(policy, ClusterScript(" in failure.value.__notes__[0]


def test_the_smallest_example_is_shown() -> None:
    with pytest.raises(ConformanceError, match=r"last 4 events:[^!]*arrivals=\(LateJoin\(time_s=0.5, workers=1\),\)"):
        conformance(IgnoresNewcomers())()


def test_everyone_may_leave() -> None:
    nobody = ClusterScript(workers=1, faults=(Fault(worker=0, step=2),))
    assert [sample_range.samples for sample_range in check(BSP(), nobody).left] == [1, 17]


@pytest.mark.parametrize(("arrivals", "alone"), [((), []), ((LateJoin(7.0),), [(0,)])])
def test_who_has_finished_comes_back_in_one_event_and_who_has_died_since_alone(
    arrivals: tuple[LateJoin, ...], alone: list[tuple[int, ...]]
) -> None:
    """Worker 0 is through with its epoch at 3 s and dies at 4.5 s, of which nobody is told; worker 2 needs 9 s."""
    script = ClusterScript(
        3, ((1.0,), (2.0,), (9.0,)), 18, 6, faults=(Fault(0, 2, 2.5),), arrivals=arrivals, meets=True
    )
    stage = check(ASP(), script)
    joined = [event.workers for event, _ in stage.entries if isinstance(event, Joined)]
    back = (0, 1, 2) if alone else (1, 2)
    assert (joined, stage.deaths) == ([(0, 1, 2), *alone, back, back], 1)
    assert not any(isinstance(event, Left) and event.reason != "finished" for event, _ in stage.entries)
