"""Looks into a simulated run while it trains."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import torch
from torch import Tensor

from polyrhythm.core import Ticket
from polyrhythm.policies.selsync import Signal
from polyrhythm.sim.gradients import TrainedNumerics
from polyrhythm.sim.numerics import Evaluation, StepResult
from polyrhythm.training.averaging import Buffers
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Task
from polyrhythm.training.flat import Segment
from polyrhythm.training.gradient import GradientRequest
from polyrhythm_experiments.diagnose.diagnostics import GradientSpread, spread, top_eigenvalue


@dataclass(frozen=True)
class Change:
    """Delta of one step of one worker, and when: samples of the job."""

    samples: int
    worker: int
    delta: float


@dataclass(frozen=True)
class ProbedModel:
    """The model at one evaluation: some layers' weights and mean gradient, and, where asked for, its curvature.

    `weights` are those that are evaluated, `replica` those of the first worker, the same if it has no replica.
    """

    samples: int
    accuracy: float
    loss: float
    weights: dict[str, Tensor]
    replica: dict[str, Tensor]
    gradients: dict[str, Tensor] = field(default_factory=dict)
    spread: GradientSpread | None = None
    eigenvalue: float | None = None


class Probe(TrainedNumerics):
    """What trains, keeping what it sees.

    Args:
        task, config, workers, seed: as of `TrainedNumerics`.
        window: of Delta, as in SelSync; its factor is n/100.
    """

    def __init__(self, task: Task, config: TrainingConfig, workers: int, seed: int, window: int = 25) -> None:
        super().__init__(task, config, workers, seed)
        self.window, self.factor = window, min(1.0, workers / 100)
        self.segments: list[Segment] = []
        self.batches: list[Tensor] = []
        self.signals: dict[int, Signal] = {}
        self.changes: list[Change] = []
        self.moments: list[ProbedModel] = []

    def look_at(self, layers: Sequence[str], batches: Sequence[Tensor]) -> None:
        """Keep the values of these parameters.

        Args:
            layers: names of parameters.
            batches: mini-batches, as indices of training samples, on which gradients and curvature are taken; none:
                only weights are kept.
        """
        self.segments = [segment for segment in self.model.layout.segments if segment.name in layers]
        self.batches = list(batches)

    def report(self, ticket: Ticket) -> StepResult:
        result = super().report(ticket)
        assert result.grad_sq_norm is not None
        before = self.signals.get(ticket.worker, Signal())
        signal = self.signals[ticket.worker] = before.after(result.grad_sq_norm, self.window, self.factor)
        if isfinite(signal.change):
            self.changes.append(Change(self.samples, ticket.worker, signal.change))
        return result

    def evaluate(self) -> Evaluation:
        quality = super().evaluate()
        parameters = self.parameters().clone()
        seen = ProbedModel(
            self.samples, quality.accuracy, quality.loss, self._layers(parameters), self._first_replica(parameters)
        )
        self.moments.append(self._looked(seen, parameters) if self.batches else seen)
        return quality

    def _first_replica(self, parameters: Tensor) -> dict[str, Tensor]:
        """Layers of the first worker's replica; of the global parameters if there is none."""
        replicas = [worker.replica for _, worker in sorted(self.workers.items()) if worker.replica]
        return self._layers(replicas[0].vector if replicas else parameters)

    def _layers(self, vector: Tensor) -> dict[str, Tensor]:
        return {segment.name: segment.view(vector).clone() for segment in self.segments}

    def _looked(self, moment: ProbedModel, parameters: Tensor) -> ProbedModel:
        """With gradients and curvature at the parameters that were just evaluated; the buffers stay as they are."""
        buffers = Buffers(self.model.buffers, self.model.counters).copy()
        requests = [GradientRequest(parameters, batch, buffers.copy()) for batch in self.batches]
        found = spread([self.gradients.compute([request])[0].vector for request in requests])
        self.model.load(parameters, buffers.vector, buffers.counters)
        eigenvalue = top_eigenvalue(self.model, self.task, torch.cat(self.batches))
        return replace(moment, gradients=self._layers(found.mean), spread=found, eigenvalue=eigenvalue)
