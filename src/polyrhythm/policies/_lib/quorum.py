"""Rounds of local steps that some of the workers end: who is late comes with the next one."""

from dataclasses import dataclass, field, replace
from typing import TypeAlias

from polyrhythm.core import Alarm, Decisions, Event, Joined, Left, Outer, Proceed, Report, Sync, Wake
from polyrhythm.core.worker_map import WorkerMap
from polyrhythm.policies._lib.rounds import RoundState

Made: TypeAlias = tuple[int, int]
"""Steps and samples of one worker since it last took over the global parameters."""

NOTHING_MADE: Made = (0, 0)


@dataclass(frozen=True, slots=True)
class QuorumState(RoundState):
    """Who is how far; `number` counts the exchanges.

    Args:
        made: of every live worker.
        waiting: who has made all its steps.
        begun_s: when the last exchange was.
        due_s: when the next one is; None before there is a quorum.
        late: workers that exchanges went without, so far.
    """

    made: WorkerMap[Made] = field(default_factory=WorkerMap)
    waiting: WorkerMap[bool] = field(default_factory=WorkerMap)
    begun_s: float = 0.0
    due_s: float | None = None
    late: int = 0


@dataclass(frozen=True, slots=True)
class Quorum:
    """An outer step once so many workers have made h steps, and some time for the others has passed.

    Args:
        h: steps of a worker.
        size: workers that suffice.
        grace: time for the others, as a share of that since the last exchange.
        outer: the outer optimizer.
    """

    h: int
    size: int
    grace: float
    outer: Outer

    def decide(self, state: QuorumState, event: Event) -> tuple[QuorumState, Decisions]:
        match event:
            case Report(worker=worker, samples=samples, time_s=time_s):
                return self.after_step(state, worker, samples, time_s)
            case Joined(workers=workers, time_s=time_s):
                begun_s = state.begun_s if state.made else time_s
                joined = replace(state, made=state.made.set_all(workers, NOTHING_MADE), begun_s=begun_s)
                return joined, (Proceed(workers, "replicas"),)
            case Left(worker=worker, time_s=time_s):
                left = replace(state, made=state.made.remove(worker), waiting=state.waiting.remove(worker))
                return self.exchange_if_due(left, time_s)
            case Alarm(time_s=time_s):
                return self.exchange_if_due(state, time_s)

    def after_step(self, state: QuorumState, worker: int, samples: int, time_s: float) -> tuple[QuorumState, Decisions]:
        steps, before = state.made.get(worker) or NOTHING_MADE
        state = replace(state, made=state.made.set(worker, (steps + 1, before + samples)))
        if steps + 1 < self.h:
            return state, (Proceed((worker,), "replicas"),)
        return self.exchange_if_due(replace(state, waiting=state.waiting.set(worker, True)), time_s)

    def exchange_if_due(self, state: QuorumState, time_s: float) -> tuple[QuorumState, Decisions]:
        """Exchange if all wait, or a quorum does and the others have had their time."""
        live, waiting = len(state.made), len(state.waiting)
        if not waiting or waiting < min(self.size, live):
            return replace(state, due_s=None), ()
        due_s = time_s + self.grace * (time_s - state.begun_s) if state.due_s is None else state.due_s
        if waiting == live or time_s >= due_s:
            return self.exchange(state, time_s)
        return replace(state, due_s=due_s), (Wake(due_s),) if state.due_s is None else ()

    def exchange(self, state: QuorumState, time_s: float) -> tuple[QuorumState, Decisions]:
        """Each counts by its samples: who was late before has no more steps than the others, but older ones."""
        workers = tuple(state.waiting)
        samples = [float((state.made.get(worker) or NOTHING_MADE)[1]) for worker in workers]
        weights = None if len(set(samples)) == 1 else tuple(samples)
        made, late = state.made.set_all(workers, NOTHING_MADE), state.late + len(state.made) - len(workers)
        after = QuorumState(state.cluster, number=state.number + 1, made=made, begun_s=time_s, late=late)
        return after, (Sync(workers, "deltas", weights, outer=self.outer), Proceed(workers, "replicas"))
