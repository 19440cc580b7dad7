"""Small clusters, policies that break policies, and what a run told its numerics, for the tests of the simulator."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from hypothesis import strategies as st

from polyrhythm.core import Cluster, Decisions, Event, Joined, Policy, Proceed, Report, Settings, Sync, Ticket, Traits
from polyrhythm.core.shards import Shards
from polyrhythm.core.workload import SampleRange, Workload
from polyrhythm.sim import Compute, Device, Faults, Join, Leave, Limits, Network, Scenario, Straggler, TimingWorkload
from polyrhythm.sim.cluster.compute import streams
from polyrhythm.sim.cluster.faults import plan
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.epochs import MeetingWorkload
from polyrhythm.sim.job import SimJob
from polyrhythm.sim.numerics import NOTHING, Evaluation, Numerics, StepResult, TimingOnly
from polyrhythm.telemetry import Meter, RunResult
from polyrhythm.training.compression import NOTHING as NOTHING_COMPRESSED

SPECS = [
    "asp",
    "backup:1",
    "bsp",
    "dssp:1,4",
    "k-async:2",
    "ringmaster:1",
    "k-batch-async:2",
    "k-batch-sync:2",
    "k-group:2",
    "k-sync:2",
    "local:3",
    "post-local:3,0.5",
    "ssp:1",
    "selsync:lssr=0.6",
    "selsync:lssr=0.6,aggregate=gradients",
    "esync",
    "esync:samples,blocking=false",
    "fedavg:0.5,0.6",
    "diloco:4",
]


def cluster(*compute_s: float, samples: int = 12, batch_size: int = 1, **fields: Any) -> Scenario:
    """One worker for each duration, constant unless `fields` say otherwise."""
    workload = TimingWorkload(batch_size=batch_size, samples=samples)
    return Scenario(devices=[Device(compute_s=mean) for mean in compute_s], workload=workload, **fields)


@st.composite
def clusters(draw: st.DrawFn) -> Scenario:
    """Two to five workers, jitter, any network, a straggler, and workers that leave, come back or come late."""
    workers = draw(st.integers(2, 5))
    gbps = draw(st.sampled_from([float("inf"), 8e-9, 24e-9]))
    network = Network(
        message_bytes=draw(st.sampled_from([0.0, 1.0])),
        server_gbps=draw(st.sampled_from([float("inf"), 8e-9, 32e-9])),
        latency_s=draw(st.sampled_from([0.0, 0.25])),
        duplex=draw(st.sampled_from(["full", "half"])),
        averaging=draw(st.sampled_from(["server", "ring"])),
        service_s=draw(st.sampled_from([0.0, 0.0, 0.3])),
    )
    someone = st.integers(0, workers - 1)
    return Scenario(
        devices=[Device(compute_s=draw(st.integers(1, 4)), bandwidth_gbps=gbps) for _ in range(workers)],
        compute=Compute(
            distribution="normal",
            deviation=draw(st.sampled_from([0.0, 0.2])),
            cancelled=draw(st.sampled_from(["stops", "finishes"])),
        ),
        network=network,
        epoch_end_s=draw(st.sampled_from([None, None, 0.5])),
        faults=Faults(
            stragglers=[Straggler(workers=[draw(someone)], start_s=3, duration_s=20, slowdown=3, extra_latency_s=0.5)],
            leaves=draw(st.lists(leaves(someone), max_size=3)),
            joins=draw(st.lists(st.just(Join(worker=workers - 1, time_s=5.0)), max_size=1)),
        ),
        workload=TimingWorkload(batch_size=3, samples=draw(st.integers(1, 90))),
        limits=Limits(time_s=draw(st.sampled_from([float("inf")] * 3 + [7.5]))),
    )


def leaves(someone: st.SearchStrategy[int]) -> st.SearchStrategy[Leave]:
    """Worker 0 stays away for a while at most, so that somebody does the work in the end."""
    by_time = st.builds(Leave, worker=someone, time_s=st.floats(0, 20), back_after_s=st.floats(0, 5))
    by_step = st.builds(Leave, worker=someone, step=st.integers(0, 5), back_after_s=st.just(2.0))
    for_good = st.builds(Leave, worker=someone.map(lambda worker: worker or 1), time_s=st.floats(0, 20))
    return st.one_of(by_time, by_step, for_good)


def engine_of(scenario: Scenario, policy: Policy[Any], numerics: Numerics | None = None, seed: int = 0) -> Engine:
    """An engine that has not run; epochs of ten samples."""
    samples = scenario.workload.samples
    job = SimJob(
        policy=policy,
        cluster=Cluster(scenario.workers, scenario.batch_size, samples, dataset_samples=min(10, samples)),
        durations=streams(scenario.compute, scenario.mean_compute_s, seed),
        bandwidths=scenario.bandwidths,
        network=scenario.network,
        plan=plan(scenario.faults, scenario.workers, seed),
        workload=Workload(min(10, samples), samples)
        if scenario.epoch_end_s is None
        else MeetingWorkload(min(10, samples), samples, even=policy.traits.placement != "coordinator"),
        numerics=numerics or TimingOnly(),
        limit_s=scenario.limits.time_s,
        epoch_end_s=scenario.epoch_end_s or 0.0,
        finishes=scenario.compute.cancelled == "finishes",
    )
    return Engine(job, Meter())


@dataclass(frozen=True)
class Recorder(Policy[Any]):
    """Another policy that keeps all events that it is told and all decisions."""

    inner: Policy[Any]
    log: list[tuple[Event, Decisions]]

    name: ClassVar[str] = "recorder"
    summary: ClassVar[str] = "records"

    @property
    def traits(self) -> Traits:
        return self.inner.traits

    def init(self, cluster: Cluster) -> Any:
        return self.inner.init(cluster)

    def decide(self, state: Any, event: Event) -> tuple[Any, Decisions]:
        state, decisions = self.inner.decide(state, event)
        self.log.append((event, decisions))
        return state, decisions


@dataclass(frozen=True)
class Scripted(Policy[int]):
    """Answers the k-th event with the k-th entry, and with ASP's answer after the last one."""

    script: Sequence[Decisions]

    name: ClassVar[str] = "scripted"
    summary: ClassVar[str] = "follows a script"
    traits: ClassVar[Traits] = Traits(exchanges=frozenset({"gradients", "replicas"}), cancels=True)

    def init(self, cluster: Cluster) -> int:
        return 0

    def decide(self, state: int, event: Event) -> tuple[int, Decisions]:
        if state < len(self.script):
            return state + 1, self.script[state]
        if isinstance(event, Report):
            return state, (Sync((event.worker,)), Proceed((event.worker,)))
        return state, (Proceed(event.workers),) if isinstance(event, Joined) else ()


class Books:
    """Numerics that only keep books: which samples are in the parameters, and which are on their way."""

    train_samples: int | None = None
    shards: Shards | None = None
    injected_bytes = 0.0
    compression = NOTHING_COMPRESSED

    def __init__(self) -> None:
        self.running: dict[Ticket, SampleRange] = {}
        self.pending: dict[Ticket, SampleRange] = {}
        self.replicas: dict[int, list[SampleRange]] = {}
        self.learned: list[SampleRange] = []

    def start(self, ticket: Ticket, sample_range: SampleRange, settings: Settings | None) -> None:
        assert ticket not in self.running
        self.running[ticket] = sample_range

    def report(self, ticket: Ticket) -> StepResult:
        sample_range = self.running.pop(ticket)
        if ticket.exchange == "gradients":
            self.pending[ticket] = sample_range
        else:
            self.replicas.setdefault(ticket.worker, []).append(sample_range)
        return NOTHING

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        self.learned += [self.pending.pop(ticket) for ticket in tickets]
        if decision.what != "gradients":
            assert not tickets
            for worker in (*decision.workers, *(decision.adopters or ())):
                self.learned += self.replicas.pop(worker, [])
        elif not tickets:
            self.learned += [self.replicas[worker].pop() for worker in decision.workers]

    def void(self, tickets: list[Ticket]) -> None:
        for ticket in tickets:
            del (self.running if ticket in self.running else self.pending)[ticket]

    def leave(self, worker: int) -> None:
        self.replicas.pop(worker, None)

    def keep(self) -> None:
        """Nothing is learned."""

    def go_back(self, kept: None) -> None:
        """See `keep`."""

    def evaluate(self) -> Evaluation | None:
        return None

    def probe(self) -> float | None:
        return None

    def finish(self, result: RunResult) -> None:
        pass

    def samples(self) -> list[tuple[int, int]]:
        """Everything that is in the parameters or in a replica at the end or was given up for an average, as (epoch,
        position)."""
        sample_ranges = [*self.learned, *(sample_range for kept in self.replicas.values() for sample_range in kept)]
        return sorted(
            (sample_range.epoch, position)
            for sample_range in sample_ranges
            for position in range(sample_range.start, sample_range.stop)
        )
