"""What a run is made of: numerics, workload, the engine's job and how its messages go, a blank result, a trace."""

import math
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from polyrhythm import __version__
from polyrhythm.core import Cluster, Header, Policy, TraceWriter
from polyrhythm.core.misuse import deadlocked
from polyrhythm.core.shards import ShardedWorkload
from polyrhythm.core.workload import Workload
from polyrhythm.errors import ScenarioError, UsageError
from polyrhythm.sim.cluster.compute import streams
from polyrhythm.sim.cluster.faults import FaultPlan, plan
from polyrhythm.sim.cluster.links import Network
from polyrhythm.sim.cluster.scenario import Scenario
from polyrhythm.sim.epochs import MeetingWorkload
from polyrhythm.sim.numerics import Numerics, TimingOnly
from polyrhythm.telemetry import RunResult


@dataclass(slots=True)
class SimJob:
    """What a run is made of, one entry a worker in `durations` and `bandwidths`."""

    policy: Policy[Any]
    cluster: Cluster
    durations: list[Iterator[float]]
    bandwidths: list[float]
    network: Network
    plan: FaultPlan
    workload: Workload
    numerics: Numerics
    limit_s: float = math.inf
    switch_cost_s: float = 0.0
    epoch_end_s: float = 0.0
    finishes: bool = False


class TransportPlan(NamedTuple):
    """What a policy's traits mean for messages.

    Args:
        ring: averages go round a ring.
        reports: a step that pushes nothing ends in a message.
        coordinated: somebody has to tell the workers what was decided.
        waits: they wait for it.
    """

    ring: bool
    reports: bool
    coordinated: bool
    waits: bool


def transport_plan(policy: Policy[Any], network: Network) -> TransportPlan:
    traits = policy.traits
    coordinated = traits.placement == "coordinator"
    ring = network.averaging == "ring" and not coordinated
    return TransportPlan(ring, traits.placement != "clock", coordinated, traits.waits)


def deadlock(policy: Policy[Any], now_s: float, waiting: list[int], samples_left: int) -> UsageError:
    if not waiting:
        return ScenarioError(
            f"all workers have left and {samples_left} samples are not processed; "
            "let one come back (faults.leaves.back_after_s) or stay"
        )
    return deadlocked(policy, now_s, waiting, samples_left)


def build_numerics(scenario: Scenario, seed: int, threads: int = 1) -> Numerics:
    """What computes the gradients; torch is imported only if there are any."""
    if scenario.training is None:
        return TimingOnly()
    from polyrhythm.sim import gradients

    numerics: Numerics = gradients.build_numerics(scenario.training, scenario.workers, seed, threads)
    return numerics


def build_job(scenario: Scenario, policy: Policy[Any], numerics: Numerics, seed: int) -> SimJob:
    if policy.traits.shares:
        check_shares(scenario, policy)
    workload = build_workload(scenario, numerics, policy)
    return SimJob(
        policy=policy,
        cluster=Cluster(
            scenario.workers, scenario.batch_size, workload.total_samples, dataset_samples=workload.dataset_samples
        ),
        durations=streams(scenario.compute, scenario.mean_compute_s, seed),
        bandwidths=scenario.bandwidths,
        network=scenario.network,
        plan=plan(scenario.faults, scenario.workers, seed),
        workload=workload,
        numerics=numerics,
        limit_s=scenario.limits.time_s,
        switch_cost_s=scenario.switch_cost_s,
        epoch_end_s=scenario.epoch_end_s or 0.0,
        finishes=scenario.compute.cancelled == "finishes",
    )


def check_shares(scenario: Scenario, policy: Policy[Any]) -> None:
    """Unequal mini-batches need one order that all read from."""
    training = scenario.training
    why = ""
    if training is not None and training.partition != "shared":
        why = f"training.partition is {training.partition!r}; use 'shared'"
    elif training is not None and training.injection:
        why = f"training.injection is {list(training.injection)}; leave it out"
    if why:
        raise ScenarioError(f"policy {policy.spec} deals the mini-batches of all in shares, but {why}")


def build_workload(scenario: Scenario, numerics: Numerics, policy: Policy[Any]) -> Workload:
    dataset = numerics.train_samples
    if scenario.training is None or dataset is None:
        total = scenario.workload.samples
        dataset = scenario.workload.dataset_samples or total
    else:
        total = scenario.training.workload_samples(dataset)
    total = min(total, scenario.limits.samples or total)
    if numerics.shards is not None:
        return ShardedWorkload(numerics.shards, total)
    if scenario.epoch_end_s is not None:
        return MeetingWorkload(dataset, total, even=policy.traits.placement != "coordinator")
    return Workload(dataset, total)


def blank_result(
    scenario: Scenario, policy: Policy[Any] | str, seed: int, trace: str | Path | None, **fields: Any
) -> RunResult:
    training = scenario.training
    return RunResult(
        scenario=scenario.name,
        policy=policy if isinstance(policy, str) else policy.spec,
        seed=seed,
        workers=scenario.workers,
        batch_size=scenario.batch_size,
        learning_rate=training.learning_rate if training else None,
        lr_convention=training.lr_convention if training else None,
        trace_path=str(trace) if trace is not None else None,
        **fields,
    )


def header(scenario: Scenario, job: SimJob, seed: int) -> Header:
    about = {"scenario": scenario.name, "seed": seed, "polyrhythm": __version__}
    return Header(job.policy.spec, job.cluster, about)


@contextmanager
def opened(trace: str | Path | None, header: Header) -> Iterator[TraceWriter | None]:
    if trace is None:
        yield None
        return
    with ExitStack() as stack:
        try:
            Path(trace).parent.mkdir(parents=True, exist_ok=True)
            stream = stack.enter_context(open(trace, "w", encoding="utf-8", newline="\n"))
        except OSError as error:
            raise ScenarioError(
                f"cannot write trace {str(trace)!r}: {error.strerror}; name a file that can be written"
            ) from error
        yield TraceWriter(stream, header)


def one_line(error: Exception) -> str:
    return " ".join(str(error).split())


@contextmanager
def one_thread(scenario: Scenario) -> Iterator[int]:
    """Keep torch, if it is needed, to one thread; gives how many it had."""
    if scenario.training is None:
        yield 1
        return
    from polyrhythm.training import gradient

    with gradient.one_thread() as threads:
        yield threads
