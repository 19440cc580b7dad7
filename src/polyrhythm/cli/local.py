"""A comparison on real workers of this host: what the simulator would draw is injected into processes."""

import math
import os
import signal
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from polyrhythm.cli.experiment import Experiment
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import PolyrhythmError, ScenarioError, UsageError
from polyrhythm.lines import say
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch.counts import MOST_A_CORE
from polyrhythm.telemetry.result import RunResult

if TYPE_CHECKING:
    from polyrhythm.emulation.pace import Death, Emulation, SlowTime
    from polyrhythm.sim import Leave, Scenario
    from polyrhythm.sim.cluster.faults import Slow
    from polyrhythm.training.data.task import Task

MOST_DELAYS = 10_000
"""Delays that a worker is given; it plays them again from the start if it makes more steps."""


def compare_on_workers(
    experiment: Experiment, results: list[RunResult], traces: Path | None, time_scale: float = 1.0
) -> None:
    """Every policy with every seed, one after the other, each a job of its own."""
    from polyrhythm.training.data.tasks import build_task

    scenario = experiment.scenario
    assert scenario.training is not None, "check_playable has seen it"
    say(*not_played(scenario, experiment.policies))
    task = build_task(scenario.training)
    with experiment.shown("real runs", at_once=1) as told:
        for spec in experiment.policies:
            for seed in experiment.seeds:
                results.append(run_one(experiment, task, spec, seed, traces, time_scale))
                told(results)


def run_one(
    experiment: Experiment, task: "Task", spec: str, seed: int, traces: Path | None, time_scale: float
) -> RunResult:
    from polyrhythm.emulation.local import LocalRun, run_local
    from polyrhythm.sim.job import blank_result, one_line
    from polyrhythm.sim.run import trace_name

    scenario, policy = experiment.scenario, parse_policy(spec)
    training = scenario.training
    assert training is not None, "check_playable has seen it"
    target = training.target_accuracy if experiment.target is None else experiment.target
    steps = training.workload_samples(len(task.train)) // training.batch_size + 1
    played, averaging = emulations(scenario, seed, steps, time_scale), scenario.network.averaging
    run = LocalRun(scenario.name, policy, training, seed, played, target, averaging)
    try:
        return run_local(run, task, traces / trace_name(policy, seed) if traces else None)
    except PolyrhythmError as error:
        return blank_result(scenario, policy, seed, None, where="local", status="failed", message=one_line(error))


def check_scale(time_scale: float) -> None:
    if not 0 < time_scale < math.inf:
        raise UsageError(f"--time-scale must be a finite number above 0 but got {time_scale:g}; 1 leaves times alone")


def check_playable(scenario: "Scenario") -> None:
    """Find what has no counterpart in processes before any is started."""
    most, cores = MOST_A_CORE, os.cpu_count() or 1
    if scenario.workers > most * cores:
        raise ScenarioError(
            f"--on local starts {scenario.workers} workers, more than {most} processes for each of {cores} cores; "
            "use fewer"
        )
    if scenario.training is None:
        raise ScenarioError("--on local trains a model, but the scenario has no training table; give it one")
    limits, faults = scenario.limits, scenario.faults
    if limits != type(limits)():
        raise ScenarioError("--on local processes the whole workload; take the limits away, and set training.epochs")
    back = [leave.back_after_s for leave in faults.leaves] + [leave.back_after_s for leave in faults.random_leaves]
    if faults.joins or any(after_s is not None for after_s in back):
        raise ScenarioError("--on local cannot let workers join later; take faults.joins and back_after_s away")


def emulations(scenario: "Scenario", seed: int, steps: int, time_scale: float) -> "list[Emulation]":
    """What each worker plays: the durations and faults that the simulator draws with this seed."""
    from polyrhythm.emulation.pace import Emulation
    from polyrhythm.sim.cluster.compute import streams
    from polyrhythm.sim.cluster.faults import plan

    faults = plan(scenario.faults, scenario.workers, seed)
    count = min(steps, MOST_DELAYS)
    durations = streams(scenario.compute, scenario.mean_compute_s, seed)
    return [
        Emulation(
            [duration_s * time_scale for duration_s in islice(stream, count)],
            tuple(slow_time(slow, time_scale) for slow in faults.slow.get(worker, ())),
            tuple(death(leave, time_scale) for leave in faults.leaves if leave.worker == worker),
            scenario.bandwidths[worker] / time_scale,
            scenario.network.latency_s * time_scale,
        )
        for worker, stream in enumerate(durations)
    ]


def slow_time(slow: "Slow", time_scale: float) -> "SlowTime":
    from polyrhythm.emulation.pace import SlowTime

    scale = 1.0 if slow.by_step else time_scale
    times = slow.extra_compute_s * time_scale, slow.extra_latency_s * time_scale
    return SlowTime(slow.start * scale, slow.stop * scale, slow.by_step, slow.slowdown, *times)


def death(leave: "Leave", time_scale: float) -> "Death":
    from polyrhythm.emulation.pace import Death

    number = signal.SIGSTOP if leave.reason == "hung" else signal.SIGKILL
    if leave.time_s is None:
        return Death(int(number), step=leave.step)
    return Death(int(number), leave.time_s * time_scale)


def on_servers(spec: str) -> bool:
    """Whether a job under this policy begins with steps on the servers; one that cannot run says so when it is due."""
    try:
        return runtime_placement(parse_policy(spec)) == "servers"
    except PolyrhythmError:
        return True


def not_played(scenario: "Scenario", policies: Sequence[str]) -> list[str]:
    """What of the scenario real workers leave out, beside its links; one line each."""
    faults = scenario.faults
    late = [scenario.network.latency_s, *(slow.extra_latency_s for slow in faults.stragglers)]
    late += [slow.extra_latency_s for slow in faults.random_stragglers]
    among = [spec for spec in policies if any(late) and not on_servers(spec)]
    if not among:
        return []
    return [
        f"network.latency_s and extra_latency_s are not played under {', '.join(among)}, whose workers exchange among "
        "themselves; they are between workers and servers"
    ]
