"""A policy on replicas that abandons steps in flight, which no built-in one does on real workers."""

from dataclasses import dataclass, replace
from typing import ClassVar

from polyrhythm.core import Cancel, Cluster, Decisions, Event, Joined, Left, Policy, Proceed, Report, Sync, Traits


@dataclass(frozen=True)
class Met:
    live: tuple[int, ...] = ()
    reports: int = 0


@dataclass(frozen=True)
class Abandoning(Policy[Met]):
    """Every `every` reports all meet, whatever they are at."""

    every: int = 5

    name: ClassVar[str] = "tests.runtime.abandoning:Abandoning"
    summary: ClassVar[str] = "meets every so many reports, whatever is in flight"
    traits: ClassVar[Traits] = Traits(exchanges=frozenset({"replicas"}), cancels=True)

    def init(self, cluster: Cluster) -> Met:
        del cluster
        return Met()

    def decide(self, state: Met, event: Event) -> tuple[Met, Decisions]:
        match event:
            case Joined(workers=workers):
                return replace(state, live=(*state.live, *workers)), (Proceed(workers, "replicas"),)
            case Left(worker=worker):
                return replace(state, live=tuple(other for other in state.live if other != worker)), ()
            case Report(worker=worker):
                state = replace(state, reports=state.reports + 1)
                return state, self.answer(state, worker)
            case _:
                return state, ()

    def answer(self, state: Met, worker: int) -> Decisions:
        if state.reports % self.every:
            return (Proceed((worker,), "replicas"),)
        running = tuple(other for other in state.live if other != worker)
        cancel = (Cancel(running),) if running else ()
        return (*cancel, Sync(state.live, "deltas"), Proceed(state.live, "replicas"))
