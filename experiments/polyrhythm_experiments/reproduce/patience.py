"""Runs that end as soon as they have converged."""

import time
from collections.abc import Callable
from typing import Literal, TypeAlias

from polyrhythm.policies import parse_policy
from polyrhythm.sim import Scenario
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.job import one_thread
from polyrhythm.sim.observer import Observer, TellShare
from polyrhythm.sim.run import run
from polyrhythm.telemetry import RunResult
from polyrhythm_experiments.reproduce.convergence import Score, accuracy, converged, log_likelihood

EndsBy: TypeAlias = Literal["accuracy", "loss"]
"""What must have converged on the test set."""

SCORES: dict[EndsBy, Score] = {"accuracy": accuracy, "loss": log_likelihood}


def run_until(index: int, scenario: Scenario, policy: str, seed: int, until: EndsBy) -> tuple[int, RunResult]:
    """A run that ends with the evaluation at which it has converged, at the latest with its workload.

    Args:
        index: is given back with the result.
        scenario, policy, seed: as of `simulate`.
        until: what must have converged.
    """
    started = time.perf_counter()
    with one_thread(scenario) as threads:
        result = run(scenario, parse_policy(policy), seed, None, None, None, threads, patient(SCORES[until]))
    result.wall_s = time.perf_counter() - started
    return index, result


def patient(score: Score) -> Callable[[Engine, Scenario, TellShare], Observer]:
    """What makes an observer that stops a run that has converged."""

    class Patient(Observer):
        def enough(self) -> bool:
            return super().enough() or converged(self.engine.meter.curve, score) is not None

    return Patient
