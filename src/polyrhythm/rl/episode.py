"""One episode: a training job of an instance under a policy, in virtual time, until the model is good enough."""

import math
from collections import deque
from typing import Any

import torch

from polyrhythm.core import Cluster, Policy, TraceWriter
from polyrhythm.core.workload import Workload
from polyrhythm.errors import DivergedError
from polyrhythm.rl.data import image_data, sampled
from polyrhythm.rl.gradients import ArrayGradients
from polyrhythm.rl.instances import Instance
from polyrhythm.sim.cluster.faults import Faults, plan
from polyrhythm.sim.cluster.links import Network
from polyrhythm.sim.engine import Engine
from polyrhythm.sim.gradients import TrainedNumerics
from polyrhythm.sim.job import SimJob
from polyrhythm.telemetry import Meter, RunResult
from polyrhythm.training.config import TrainingConfig

BATCH = 16
"""Samples of one mini-batch."""
SHARE = 0.5
"""Each job trains on a random half of the data."""
SMOOTHED = 5
"""The accuracy that ends a job is the mean of so many evaluations."""
PUSHES = 6000
"""Mini-batches of the longest job."""


class Episode:
    """A job, from its first step to its target; `engine` runs it."""

    def __init__(
        self,
        instance: Instance,
        policy: Policy[Any],
        folder: str | None = None,
        engine: type[Engine] = Engine,
        writer: TraceWriter | None = None,
    ) -> None:
        family = self.family = instance.family
        self.instance = instance
        task = sampled(image_data(family.data, folder), SHARE, instance.seed, instance.hidden, family.width)
        samples = BATCH * PUSHES
        config = TrainingConfig(learning_rate=family.learning_rate, batch_size=BATCH, samples=samples)
        numerics = TrainedNumerics(task, config, instance.workers, instance.seed)
        numerics.gradients = ArrayGradients(task, numerics.model)
        numerics.gradients.norms = "grad_sq_norm" in policy.traits.needs
        if "probe_loss" in policy.traits.needs:
            numerics.prober = ArrayGradients(task.probing(instance.seed), numerics.model)
        job = SimJob(
            policy=policy,
            cluster=Cluster(instance.workers, BATCH, samples),
            durations=instance.durations(),
            bandwidths=[math.inf] * instance.workers,
            network=Network(),
            plan=plan(Faults(), instance.workers, instance.seed),
            workload=Workload(len(task.train), samples),
            numerics=numerics,
            limit_s=family.limit_s,
        )
        self.engine = engine(job, Meter(family.target), writer)
        self.interval = BATCH * instance.workers
        self.accuracies: deque[float] = deque(maxlen=SMOOTHED)
        self.reached = False
        self.diverged = False
        self.engine.watch(self.interval, self._at_mark)

    def run(self) -> "Episode":
        try:
            with torch.inference_mode():
                self.engine.run()
        except DivergedError:
            self.diverged = True
        return self

    @property
    def time_s(self) -> float:
        return self.engine.calendar.now_s if self.reached else self.family.limit_s

    def result(self) -> RunResult:
        engine, family = self.engine, self.family
        result = RunResult(
            scenario=family.name,
            policy=engine.policy.spec,
            seed=self.instance.seed,
            status="diverged" if self.diverged else "ok",
            workers=self.instance.workers,
            batch_size=BATCH,
            learning_rate=family.learning_rate,
            lr_convention="linear",
        )
        engine.meter.finish(result, engine.ledger, engine.calendar.now_s)
        result.time_to_target_s = self.time_s if self.reached else None
        return result

    def _at_mark(self) -> float:
        """Evaluate; stop once the mean accuracy is there."""
        engine = self.engine
        quality = engine.numerics.evaluate()
        assert quality is not None
        engine.meter.evaluated(engine.calendar.now_s, quality.accuracy, quality.loss)
        self.accuracies.append(quality.accuracy)
        full = len(self.accuracies) == SMOOTHED
        if full and sum(self.accuracies) / SMOOTHED >= self.family.target:
            self.reached = engine.stopped = True
        return engine.meter.samples + self.interval
