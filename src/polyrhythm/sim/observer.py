"""What watches a run without touching it: evaluations, the target, and progress."""

import math
from collections.abc import Callable
from typing import TypeAlias

from polyrhythm.sim.cluster.scenario import Scenario
from polyrhythm.sim.engine import Engine

TellShare: TypeAlias = Callable[[float], None] | None
"""Is called with the share of the workload that is done."""

REPORTS = 100
"""How often progress is told."""


class Observer:
    """Evaluates at the first update after each multiple of the interval and at the end; virtual time stands still.

    While replicas hold steps that nobody has averaged there is no model that anyone has: an evaluation waits for the
    average, as ESync's rounds may be many intervals long.
    """

    def __init__(self, engine: Engine, scenario: Scenario, progress: TellShare) -> None:
        self.engine, self.progress = engine, progress
        self.stop_at_target = scenario.limits.stop_at_target
        self.total = engine.workload.total_samples
        dataset = engine.numerics.train_samples
        training = scenario.training
        self.interval = training.evaluation_interval(dataset) if training and dataset else math.inf
        self.report_interval = max(1.0, self.total / REPORTS) if progress else math.inf
        self.next_evaluation, self.next_report = self.interval, self.report_interval

    def attach(self) -> None:
        self.engine.watch(min(self.next_evaluation, self.next_report), self._at_mark)

    def finish(self) -> None:
        self._evaluate()
        if self.progress is not None:
            self.progress(min(1.0, self.engine.meter.samples / self.total))

    def _at_mark(self) -> float:
        samples = self.engine.meter.samples
        if samples >= self.next_report and self.progress is not None:
            self.next_report = following(samples, self.report_interval)
            self.progress(min(1.0, samples / self.total))
        if samples >= self.next_evaluation and not any(
            worker_state.local for worker_state in self.engine.worker_states.values()
        ):
            self.next_evaluation = following(samples, self.interval)
            self._evaluate()
        return min(self.next_evaluation, self.next_report)

    def _evaluate(self) -> None:
        engine, meter = self.engine, self.engine.meter
        if meter.curve and meter.curve[-1].samples == meter.samples and meter.curve[-1].updates == meter.updates:
            return
        quality = engine.numerics.evaluate()
        if quality is None:
            return
        meter.evaluated(engine.calendar.now_s, *quality)
        if self.enough():
            engine.stopped = True

    def enough(self) -> bool:
        """Whether the run ends with the evaluation that was just made."""
        return self.stop_at_target and self.engine.meter.reached is not None


def following(samples: float, interval: float) -> float:
    return (samples // interval + 1) * interval
