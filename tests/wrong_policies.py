"""Policies that break the contract at the first report of worker 1, each in its own way; ASP otherwise."""

from typing import Any, ClassVar

from polyrhythm.core import Alarm, Cancel, Event, Proceed, Report, Settings, Sync, Traits, Wake
from polyrhythm.policies import ASP, LocalSGD


class Wrong(ASP):
    """What is decided then; `state` stays."""

    summary: ClassVar[str] = "breaks the contract"

    def decide(self, state: Any, event: Event) -> Any:
        if isinstance(event, Report) and (event.worker, event.clock) == (1, 1):
            return self.answer(state, event)
        return super().decide(state, event)

    def answer(self, state: Any, event: Report) -> Any:
        return state, self.decisions(event)

    def decisions(self, event: Report) -> Any:
        raise NotImplementedError


class Raises(Wrong):
    def decisions(self, event: Report) -> Any:
        raise ValueError("oops")


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


class CancelsUndeclared(Wrong):
    def decisions(self, event: Report) -> Any:
        return (Cancel((1,)),)


class WakesInThePast(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Wake(-1.0)


class WakesAtNoTime(Wrong):
    def decisions(self, event: Report) -> Any:
        return Sync((1,)), Wake(float("nan"))


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
        if isinstance(event, Report) and (event.worker, event.clock) == (1, 1):
            raise ValueError("oops")
        return super().decide(state, event)


class WakesByTheClock(LocalSGD):
    summary: ClassVar[str] = "breaks the contract"

    def decide(self, state: Any, event: Event) -> Any:
        state, decisions = super().decide(state, event)
        late = isinstance(event, Report) and (event.worker, event.clock) == (1, 1)
        return state, (*decisions, Wake(99.0)) if late else decisions


class StartsBadly(ASP):
    summary: ClassVar[str] = "breaks the contract"
    traits: ClassVar[Traits] = Traits()

    def init(self, cluster: Any) -> Any:
        raise ValueError("oops")
