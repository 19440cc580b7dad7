"""Policies that break the contract at the reports of worker 1, each in its own way; ASP otherwise."""

import json
from typing import Any, ClassVar

import numpy as np

from polyrhythm.core import (
    Alarm,
    Cancel,
    Event,
    Joined,
    Left,
    MeasureLoss,
    Proceed,
    Report,
    Settings,
    Stop,
    Stopped,
    Sync,
    Traits,
    Wake,
)
from polyrhythm.policies import ASP, BSP, Balanced, LocalSGD


class Wrong(ASP):
    """What is decided then; `state` stays."""

    summary: ClassVar[str] = "breaks the contract"

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Report) and event.worker == 1:
            return self.answer(state, event)
        return super().decide(state, event)

    def answer(self, state: Any, event: Report) -> Any:
        return state, self.decisions(event)

    def decisions(self, event: Report) -> Any:
        raise NotImplementedError


class Raises(Wrong):
    def decisions(self, event: Report) -> Any:
        raise ValueError("oops")


class Big:
    def __repr__(self) -> str:
        return "[1,\n 2]" + 1000 * "."


class RaisesOnManyLines(Wrong):
    def decisions(self, event: Report) -> Any:
        raise ValueError(Big())


class SaysManyLines(Wrong):
    def decisions(self, event: Report) -> Any:
        return (Big(),)


class ReturnsManyLines(Wrong):
    def answer(self, state: Any, event: Report) -> Any:
        return Big()


class RaisesElsewhere(Wrong):
    def decisions(self, event: Report) -> Any:
        return json.loads("{")


class ShowsNoFigures(ASP):
    summary: ClassVar[str] = "breaks the contract"
    shown: ClassVar[Any] = 3

    def figures(self, state: Any) -> Any:
        return self.shown


class ShowsNumpy(ASP):
    """Keeps the contract."""

    summary: ClassVar[str] = "shows a number of numpy"

    def figures(self, state: Any) -> Any:
        return {"threshold": np.float32(0.5)}


class ShowsText(ShowsNoFigures):
    shown: ClassVar[Any] = {"threshold": "high"}


class Exits(Wrong):
    def decisions(self, event: Report) -> Any:
        raise SystemExit(0)


class ReturnsNothing(Wrong):
    def answer(self, state: Any, event: Report) -> Any:
        return None


class ReturnsOnlyDecisions(Wrong):
    def answer(self, state: Any, event: Report) -> Any:
        return [state, (Sync((1,)),)]


class ReturnsAList(Wrong):
    def decisions(self, event: Report) -> Any:
        return [Sync((1,))]


class SaysGo(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), "go"


class SyncsNothing(Wrong):
    def decisions(self, event: Report) -> Any:
        return (Sync(()),)


class SyncsTwice(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Sync((1,))


class WeighsNothing(Wrong):
    def decisions(self, event: Report) -> Any:
        return (Sync((1,), weights=(0.0,)),)


class AveragesUndeclared(Wrong):
    def decisions(self, event: Report) -> Any:
        return (Sync((1,), "parameters"),)


class ForgetsTheComma(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Proceed(1)  # type: ignore[arg-type]


class RestartsTwice(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Proceed((1, 1))


class StartsAStranger(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Proceed((7,))


class StartsNobodysKind(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Proceed((1,), "gradient")  # type: ignore[arg-type]


class SetsABatchOfNothing(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Proceed((1,), settings=Settings(batch_size=0))


class SharesUndeclared(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Proceed((1,), shares=(1,))


class CancelsUndeclared(Wrong):
    def decisions(self, event: Report) -> Any:
        return (Cancel((1,)),)


class StopsWhoWaits(Wrong):
    def decisions(self, event: Report) -> Any:
        return (Stop((1,)),)


class GoesOn(LocalSGD):
    """Its workers do not wait for answers."""

    summary: ClassVar[str] = "breaks the contract"
    traits: ClassVar[Traits] = Traits(exchanges=frozenset({"replicas"}), waits=False)

    def decide(self, state: Any, event: Event) -> Any:
        go = tuple(event.workers) if isinstance(event, Joined) else ()
        if isinstance(event, Report):
            return state, self.decisions(event)
        return state, (Proceed(go, "replicas"),) if go else ()

    def decisions(self, event: Report) -> Any:
        raise NotImplementedError


class NeverAnswers(GoesOn):
    def decisions(self, event: Report) -> Any:
        return ()


class StopsAStranger(GoesOn):
    def decisions(self, event: Report) -> Any:
        return Proceed((event.worker,), "replicas"), Stop((7,))


class StopsTwice(GoesOn):
    """Another worker, which has stopped already."""

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Stopped):
            return state, (Stop((event.worker,)),)
        return super().decide(state, event)

    def decisions(self, event: Report) -> Any:
        go = Proceed((event.worker,), "replicas")
        return (go, Stop((1,))) if (event.worker, event.clock) == (1, 1) else (go,)


class WakesInThePast(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Wake(-1.0)


class WakesAtNoTime(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Wake(float("nan"))


class MeasuresUndeclared(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), MeasureLoss(99.0)


class NeverWakes(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Wake(float("inf"))


class RaisesOnAlarm(Wrong):
    """Its exception has no worker's message as its cause."""

    def decisions(self, event: Report) -> Any:
        return Wake(event.time_s), Sync((1,)), Proceed((1,))

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Alarm):
            raise ValueError("woken")  # noqa: TRY004
        return super().decide(state, event)


class RaisesByTheClock(LocalSGD):
    """Every rank runs it by itself."""

    summary: ClassVar[str] = "breaks the contract"

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Report) and event.worker == 1:
            raise ValueError("oops")
        return super().decide(state, event)


class WakesByTheClock(LocalSGD):
    summary: ClassVar[str] = "breaks the contract"

    def decide(self, state: Any, event: Event) -> Any:
        state, decisions = super().decide(state, event)
        late = isinstance(event, Report) and event.worker == 1
        return state, (*decisions, Wake(99.0)) if late else decisions


class StartsNobody(Wrong):
    """Everyone waits from the start."""

    def decide(self, state: Any, event: Event) -> Any:
        return (state, ()) if isinstance(event, Joined) else super(Wrong, self).decide(state, event)


class ForgetsToGoOn(Wrong):
    """Each worker waits after its first step."""

    def decide(self, state: Any, event: Event) -> Any:
        return (
            (state, (Sync((event.worker,)),)) if isinstance(event, Report) else super(Wrong, self).decide(state, event)
        )


class ForgetsWhoHasLeft(BSP):
    """The barrier does not open when the last that is missing leaves."""

    summary: ClassVar[str] = "breaks the contract"
    traits: ClassVar[Traits] = Traits()

    def decide(self, state: Any, event: Event) -> Any:
        return (state, ()) if isinstance(event, Left) else super().decide(state, event)


class WakesOnce(ForgetsToGoOn):
    """Who waits goes on with the alarm."""

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Report) and event.clock == 1:
            return state, (Sync((event.worker,)), Wake(event.time_s + 5.0))
        return super().decide(state, event)


class ForgetsByTheClock(LocalSGD):
    """Every rank runs it by itself."""

    summary: ClassVar[str] = "breaks the contract"

    def decide(self, state: Any, event: Event) -> Any:
        state, decisions = super().decide(state, event)
        return state, () if isinstance(event, Report) and event.clock == 2 else decisions


class ForgetsOneByTheClock(LocalSGD):
    summary: ClassVar[str] = "breaks the contract"

    def decide(self, state: Any, event: Event) -> Any:
        state, decisions = super().decide(state, event)
        forgets = isinstance(event, Report) and event.worker == 1 and event.clock == 2
        return state, () if forgets else decisions


class StartsBadly(ASP):
    summary: ClassVar[str] = "breaks the contract"
    traits: ClassVar[Traits] = Traits()

    def init(self, cluster: Any) -> Any:
        raise ValueError("oops")


class ExitsAtStart(StartsBadly):
    def init(self, cluster: Any) -> Any:
        raise SystemExit(0)


class Shares(Balanced):
    """What is wrong with shares, of policies that say that they deal them."""

    summary: ClassVar[str] = "breaks the contract"
    traits: ClassVar[Traits] = Balanced.traits
    shares: ClassVar[Any] = None

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Report) and event.worker == 1:
            return state, (Sync((1,)), Proceed((1,), shares=self.shares))
        return super().decide(state, event)


class SharesTooMuch(Shares):
    traits: ClassVar[Traits] = Balanced.traits
    shares: ClassVar[Any] = (3,)


class SharesNothing(Shares):
    traits: ClassVar[Traits] = Balanced.traits
    shares: ClassVar[Any] = (0,)


class SharesForOthers(Shares):
    traits: ClassVar[Traits] = Balanced.traits
    shares: ClassVar[Any] = (1, 1)


class MakesItsShare(ASP):
    """Each worker makes five local steps, and then waits for the next part of a sequence."""

    summary: ClassVar[str] = "waits after its share"
    traits: ClassVar[Traits] = Traits(exchanges=frozenset({"replicas"}))

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Joined):
            return state, (Proceed(event.workers, "replicas"),)
        if isinstance(event, Report) and event.clock < 5:
            return state, (Proceed((event.worker,), "replicas"),)
        return state, ()


class NeverAlone(ASP):
    """Nobody steps unless two are live."""

    summary: ClassVar[str] = "waits for a second worker"

    def init(self, cluster: Any) -> Any:
        return frozenset(), frozenset()

    def decide(self, state: Any, event: Event) -> Any:
        (live, waiting), applied = state, tuple[Sync, ...]()
        if isinstance(event, Joined):
            live, waiting = live.union(event.workers), waiting.union(event.workers)
        elif isinstance(event, Left):
            live, waiting = live - {event.worker}, waiting - {event.worker}
        elif isinstance(event, Report):
            waiting, applied = waiting | {event.worker}, (Sync((event.worker,)),)
        if len(live) < 2 or not waiting:
            return (live, waiting), applied
        return (live, frozenset()), (*applied, Proceed(tuple(sorted(waiting))))
