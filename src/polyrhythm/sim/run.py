"""Runs of scenarios: one policy and seed, or many on all cores."""

import time
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sized
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import joblib

from polyrhythm.core import Policy
from polyrhythm.core.arguments import MOST_SEED, check_function, check_share, listed, path_of, whole_number
from polyrhythm.errors import DivergedError, PolyrhythmError, UsageError
from polyrhythm.policies import as_policy
from polyrhythm.sim.cluster.files import checked
from polyrhythm.sim.cluster.scenario import Scenario
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.job import blank_result, build_job, build_numerics, header, one_line, one_thread, opened
from polyrhythm.sim.observer import Observer, TellShare
from polyrhythm.sim.tied import delayed
from polyrhythm.telemetry import Meter, RunResult


def simulate(
    scenario: Scenario,
    policy: str | Policy[Any],
    *,
    seed: int = 0,
    target: float | None = None,
    trace: str | Path | None = None,
    progress: Callable[[float], None] | None = None,
) -> RunResult:
    """Run one policy through a scenario in virtual time.

    Args:
        scenario: cluster and job.
        policy: a spec or a policy.
        seed: of everything random: durations, faults, parameters, order of the samples.
        target: accuracy that is timed; none: the scenario's ``training.target_accuracy``.
        trace: file to write the trace to.
        progress: called with the share of the workload that is done, about a hundred times.

    Returns:
        What was measured; of a run that diverged, up to then, with status "diverged".

    Example:
        >>> from polyrhythm import Device, Scenario, TimingWorkload
        >>> devices = [Device(count=2, compute_s=1.0), Device(count=2, compute_s=2.0)]
        >>> scenario = Scenario(devices=devices, workload=TimingWorkload(samples=6400))
        >>> simulate(scenario, "bsp").idle_fraction
        0.25
    """
    started = time.perf_counter()
    scenario, policy, seed = checked(scenario), as_policy(policy), whole_number("seed", seed, 0, MOST_SEED)
    check_share("target", target)
    check_function("progress", progress)
    trace = None if trace is None else path_of("trace", trace)
    if scenario.training is not None and scenario.training.rollback and trace is None:
        from polyrhythm.sim.rollback import rolled_back

        with one_thread(scenario):
            return rolled_back(scenario, policy, seed, target)
    with one_thread(scenario) as threads:
        result = run(scenario, policy, seed, target, trace, progress, threads)
    result.wall_s = time.perf_counter() - started
    return result


def run(
    scenario: Scenario,
    policy: Policy[Any],
    seed: int,
    target: float | None,
    trace: str | Path | None,
    progress: TellShare,
    threads: int,
    observe: Callable[[Engine, Scenario, TellShare], Observer] = Observer,
) -> RunResult:
    """One run to its end.

    Args:
        scenario, policy, seed, target, trace, progress: as of `simulate`.
        threads: how many cores gradients may be computed on.
        observe: makes what evaluates, and says when that is enough.
    """
    numerics = build_numerics(scenario, seed, threads)
    job = build_job(scenario, policy, numerics, seed)
    training = scenario.training
    meter = Meter(target if target is not None or training is None else training.target_accuracy)
    result = blank_result(scenario, policy, seed, trace)
    with opened(trace, header(scenario, job, seed)) as writer:
        engine = Engine(job, meter, writer)
        observer = observe(engine, scenario, progress)
        try:
            observer.attach()
            engine.run()
            observer.finish()
        except DivergedError as error:
            result.status, result.message = "diverged", one_line(error)
    meter.finish(result, engine.ledger, engine.calendar.now_s)
    numerics.finish(result)
    return result


def sweep(
    scenario: Scenario,
    policies: Iterable[str | Policy[Any]],
    seeds: Iterable[int],
    *,
    target: float | None = None,
    trace_dir: str | Path | None = None,
    jobs: int = -1,
    on_result: Callable[[RunResult], None] | None = None,
) -> list[RunResult]:
    """Run every policy with every seed, on all cores or on the cluster of an enclosing ``joblib.parallel_config``.

    Args:
        scenario: cluster and job.
        policies: specs or policies.
        seeds: of the runs; the same seed gives every policy the same durations and faults.
        target: as in `simulate`.
        trace_dir: folder for the traces, one a run.
        jobs: processes; -1 is one a core.
        on_result: called with each result as soon as it is there.

    Returns:
        Results by policy, then by seed. A run that fails has status "failed" and its message; the others are kept.

    >>> from polyrhythm import Device, TimingWorkload
    >>> scenario = Scenario(devices=[Device(count=2)], workload=TimingWorkload(samples=640))
    >>> results = sweep(scenario, ["bsp", "asp"], seeds=[0, 1], jobs=1)
    >>> [(result.policy, result.seed) for result in results]
    [('bsp', 0), ('bsp', 1), ('asp', 0), ('asp', 1)]
    """
    check_share("target", target)
    check_function("on_result", on_result)
    scenario, trace_dir = checked(scenario), None if trace_dir is None else path_of("trace_dir", trace_dir)
    policies = [each if isinstance(each, str) else as_policy(each) for each in listed("policies", policies, EXAMPLE)]
    seeds = checked_seeds(seeds)
    if trace_dir is not None:
        check_traces_apart(policies)
    alone = len(policies) * len(seeds) == 1
    runs = [
        delayed(run_one)(index, scenario, policy, seed, target, trace_dir, alone)
        for index, (policy, seed) in enumerate((policy, seed) for policy in policies for seed in seeds)
    ]
    results: list[RunResult | None] = [None] * len(runs)
    for index, result in completed(runs, jobs):
        results[index] = result
        if on_result is not None:
            on_result(result)
    return [result for result in results if result is not None]


def compare(
    scenario: Scenario,
    policies: Iterable[str | Policy[Any]],
    seeds: Iterable[int] = (0,),
    *,
    target: float | None = None,
    jobs: int = -1,
) -> dict[str, list[RunResult]]:
    """Run several policies on one scenario, and give the results of each.

    It is `sweep` with its results by policy: the command ``polyrhythm compare`` without its table and page.

    Args:
        scenario: cluster and job.
        policies: specs or policies; one that is named twice runs once.
        seeds: of the runs; the same seed gives every policy the same durations and faults.
        target: as in `simulate`.
        jobs: processes; -1 is one a core.

    Returns:
        Results by the policy's canonical spec, in the order of `policies`; of each policy in that of `seeds`. A
        run that fails has status "failed" and its message; the others are kept.

    Example:
        >>> from polyrhythm import Device, Scenario, TimingWorkload
        >>> devices = [Device(count=3, compute_s=1.0), Device(count=1, compute_s=4.0)]
        >>> scenario = Scenario(devices=devices, workload=TimingWorkload(samples=6400))
        >>> results = compare(scenario, ["bsp", "asp"], jobs=1)
        >>> {policy: round(runs[0].idle_fraction, 2) for policy, runs in results.items()}
        {'bsp': 0.56, 'asp': 0.0}
    """
    chosen = {policy.spec: policy for policy in map(as_policy, listed("policies", policies, EXAMPLE))}
    seeds = checked_seeds(seeds)
    results = sweep(scenario, [*chosen.values()], seeds, target=target, jobs=jobs)
    each = len(seeds)
    return {spec: results[each * i : each * (i + 1)] for i, spec in enumerate(chosen)}


EXAMPLE = "['bsp', 'ssp:3']"
"""Of policies, for messages."""


def checked_seeds(seeds: Iterable[int]) -> list[int]:
    """Each once: a run that is made twice would count as two, and both would write the same trace."""
    found = [whole_number("each of seeds", seed, 0, MOST_SEED) for seed in listed("seeds", seeds, "[0, 1, 2]")]
    twice = [seed for seed, times in Counter(found).items() if times > 1]
    if twice:
        raise UsageError(f"seeds has {twice[0]} twice; give each once, as in [0, 1, 2]")
    return found


def completed(runs: list[Any], jobs: int) -> Iterator[tuple[int, RunResult]]:
    """Results in the order in which they are ready, or all at the end where the backend cannot stream them."""
    jobs = processes_for(runs, jobs)
    try:
        parallel = joblib.Parallel(n_jobs=jobs, return_as="generator_unordered")
    except ValueError:
        parallel = joblib.Parallel(n_jobs=jobs)
    results = parallel(runs)
    try:
        for result in results:  # noqa: UP028 - `yield from` would close it before the warning is silenced
            yield result
    finally:
        if isinstance(results, Generator):  # who wants no more results knows that some runs are cut short
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                results.close()


def processes_for(runs: Sized, jobs: int) -> int:
    """At most as many as there are runs, and none but this process for one; -1 is one a core.

    >>> processes_for("ab", 500), processes_for("ab", -1), processes_for("a", -1)
    (2, -1, 1)
    """
    if not isinstance(jobs, int) or jobs == 0:
        raise UsageError(f"jobs must be a whole number of at least 1, or -1 for one a core, but got {jobs!r}")
    return 1 if len(runs) < 2 else min(jobs, len(runs))


def run_one(
    index: int,
    scenario: Scenario,
    policy: str | Policy[Any],
    seed: int,
    target: float | None,
    trace_dir: str | Path | None,
    alone: bool = False,
) -> tuple[int, RunResult]:
    """One run of a sweep, on one core unless it is the only one; a failure becomes a result."""
    try:
        policy = as_policy(policy)
        trace = None if trace_dir is None else Path(trace_dir) / trace_name(policy, seed)
        with nullcontext() if alone else one_thread(scenario):
            return index, simulate(scenario, policy, seed=seed, target=target, trace=trace)
    except PolyrhythmError as error:
        spec = policy if isinstance(policy, str) else policy.spec
        return index, blank_result(scenario, spec, seed, None, status="failed", message=one_line(error))


def check_traces_apart(policies: Iterable[str | Policy[Any]]) -> None:
    """No two policies write one file; who is no policy fails in its own run."""
    known: dict[str, str] = {}
    for each in policies:
        try:
            policy = as_policy(each)
        except UsageError:
            continue
        name = trace_name(policy, 0)
        if name in known:
            both = f"{policy.spec} twice" if known[name] == policy.spec else f"{known[name]} and {policy.spec}"
            raise UsageError(f"policies has {both}, whose traces in trace_dir would be one file; give one of them")
        known[name] = policy.spec


def trace_name(policy: Policy[Any], seed: int) -> str:
    """File name of a trace.

    >>> trace_name(as_policy("local:h=8"), 1)
    'local-8-seed1.jsonl'
    """
    plain = "".join(character if character.isalnum() or character in "._-" else "-" for character in policy.spec)
    return f"{plain}-seed{seed}.jsonl"
