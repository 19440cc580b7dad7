"""Trains the same model under BSP and SelSync and looks into it on the way."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from polyrhythm.core import Policy
from polyrhythm.errors import UsageError, did_you_mean
from polyrhythm.policies import SelSync, parse_policy
from polyrhythm.sim import Scenario
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.job import blank_result, build_job
from polyrhythm.sim.observer import Observer
from polyrhythm.telemetry import Meter, RunResult
from polyrhythm.training.data.tasks import build_task
from polyrhythm.training.flat import FlatModel
from polyrhythm_experiments.diagnose.probe import Probe

LAYERS = 3
"""Layers that are looked at unless some are named: the first, one in the middle, the last."""


@dataclass(frozen=True)
class Seen:
    result: RunResult
    probe: Probe


@dataclass(frozen=True)
class Diagnosis:
    """Runs by name: BSP, and SelSync with parameter (PA) and gradient aggregation (GA).

    Args:
        scenario: cluster and training.
        seed: of everything random.
        layers: parameters that were looked at.
        delta: threshold of SelSync.
        runs: what was seen.
    """

    scenario: Scenario
    seed: int
    layers: Sequence[str]
    delta: float
    runs: dict[str, Seen]


def diagnose(
    scenario: Scenario,
    *,
    seed: int = 0,
    delta: float = 0.25,
    layers: Sequence[str] = (),
    batches: int = 8,
    tell: Callable[[], None] = lambda: None,
) -> Diagnosis:
    """Train under BSP, then under SelSync with both aggregations, and look into the model at every evaluation.

    Args:
        scenario: cluster and training; of the cluster only the number of workers and who is slow matter.
        seed: of everything random.
        delta: threshold of SelSync; the paper's figures have 0.25.
        layers: names of parameters to look at; none: the first, a middle and the last weight.
        batches: mini-batches that gradients and curvature are estimated from, at least 2.
        tell: called after each of the three runs.

    Raises:
        UsageError: for a scenario that trains nothing, or an unknown layer.
    """
    if scenario.training is None:
        raise UsageError(f"scenario {scenario.name!r} trains nothing; diagnose needs a training table")
    policies: dict[str, Policy[Any]] = {
        "BSP": parse_policy("bsp"),
        "PA": SelSync(delta),
        "GA": SelSync(delta, aggregate="gradients"),
    }
    runs: dict[str, Seen] = {}
    for name, policy in policies.items():
        runs[name] = watch(scenario, policy, seed, layers, batches if name == "BSP" else 0)
        tell()
    return Diagnosis(scenario, seed, [segment.name for segment in runs["BSP"].probe.segments], delta, runs)


def watch(scenario: Scenario, policy: Policy[Any], seed: int, layers: Sequence[str], batches: int) -> Seen:
    assert scenario.training is not None
    probe = Probe(build_task(scenario.training), scenario.training, scenario.workers, seed)
    samples = probe_samples(probe.train_samples, scenario.batch_size, batches, seed)
    probe.look_at(chosen_layers(probe.model, layers), samples)
    meter, result = Meter(), blank_result(scenario, policy, seed, None)
    engine = Engine(build_job(scenario, policy, probe, seed), meter, None)
    observer = Observer(engine, scenario, None)
    observer.attach()
    engine.run()
    observer.finish()
    meter.finish(result, engine.ledger, engine.calendar.now_s)
    return Seen(result, probe)


def probe_samples(available: int, batch_size: int, batches: int, seed: int) -> list[Tensor]:
    size = min(batch_size, available)
    random = np.random.default_rng((seed, 1))
    return [torch.from_numpy(random.choice(available, size, replace=False)) for _ in range(batches)]


def chosen_layers(model: FlatModel, wanted: Sequence[str]) -> list[str]:
    """The parameters that are asked for, or some of those that have at least two dimensions."""
    names = [segment.name for segment in model.layout.segments]
    for name in wanted:
        if name not in names:
            raise UsageError(f"--layers: the model has no parameter {name!r}: {did_you_mean(name, names)}")
    if wanted:
        return list(wanted)
    matrices = [segment.name for segment in model.layout.segments if len(segment.shape) > 1]
    places = np.linspace(0, len(matrices) - 1, LAYERS).round().astype(int)
    return [matrices[place] for place in dict.fromkeys(places.tolist())]
