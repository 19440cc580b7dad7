"""Rounds of local steps: everyone trains its own replica, and all exchange at a common clock."""

from abc import abstractmethod
from dataclasses import dataclass, field, replace

from polyrhythm.core import (
    Alarm,
    Cluster,
    Decisions,
    Event,
    Joined,
    Left,
    Policy,
    Proceed,
    Report,
    Sync,
    Traits,
)
from polyrhythm.policies._lib.barrier import Barrier

ON_REPLICAS = Traits(placement="clock", exchanges=frozenset({"replicas"}))


@dataclass(frozen=True, slots=True)
class RoundState:
    """What is known of the job, who has completed the round under way, and when it is complete.

    Args:
        cluster: as `Policy.init` got it.
        barrier: who is live, and who waits.
        end: clock at which the round under way is complete.
        number: rounds that are over.
        processed: samples of all steps so far.
    """

    cluster: Cluster
    barrier: Barrier = field(default_factory=Barrier)
    end: int = 0
    number: int = 0
    processed: int = 0


@dataclass(frozen=True)
class Rounds(Policy[RoundState]):
    """Local steps on each worker's own replica, and an exchange among all who are live at the end of each round.

    A subclass says how long a round is and what is exchanged after it. A worker that joins starts from the global
    parameters at the smallest clock of the live workers and completes the round with them.
    """

    @property
    def traits(self) -> Traits:
        """Everyone knows from clocks when a round is over."""
        return ON_REPLICAS

    @abstractmethod
    def length(self, state: RoundState) -> int:
        """Steps of the round that starts, at least 1."""

    @abstractmethod
    def exchange(self, state: RoundState, workers: tuple[int, ...]) -> Sync:
        """What the live workers exchange at the end of the round under way."""

    def init(self, cluster: Cluster) -> RoundState:
        return RoundState(cluster, processed=cluster.processed_samples)

    def decide(self, state: RoundState, event: Event) -> tuple[RoundState, Decisions]:
        match event:
            case Report():
                return self.after_report(state, event)
            case Joined(workers=workers, clock=clock):
                joined = replace(state, barrier=state.barrier.join(len(workers)))
                end = state.end if state.barrier.live else clock + self.length(joined)
                return replace(joined, end=end), (Proceed(workers, "replicas"),)
            case Left(worker=worker):
                return self.exchange_if_complete(replace(state, barrier=state.barrier.leave(worker)))
            case Alarm():
                return state, ()

    def after_report(self, state: RoundState, report: Report) -> tuple[RoundState, Decisions]:
        state = replace(state, processed=state.processed + report.samples)
        if report.clock < state.end:
            return state, (Proceed((report.worker,), "replicas"),)
        return self.exchange_if_complete(replace(state, barrier=state.barrier.arrive(report.worker)))

    def exchange_if_complete(self, state: RoundState) -> tuple[RoundState, Decisions]:
        """Exchange once every live worker has completed the round, and start the next one."""
        barrier, workers = state.barrier.release(state.barrier.live)
        if not workers:
            return state, ()
        decisions = (self.exchange(state, workers), Proceed(workers, "replicas"))
        state = replace(state, barrier=barrier, number=state.number + 1)
        return replace(state, end=state.end + self.length(state)), decisions
