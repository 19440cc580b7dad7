"""Real gradients in virtual time: `Numerics` that train a model.

A step's gradient is that at the parameters which it read when it started, but it is computed only when the step
arrives, so a step that is abandoned costs nothing. Steps that are in flight then may be computed along with it (see
`polyrhythm.training.gradient`), unless too many of them turn out to be abandoned.

Rates. With eta the configured rate, f the schedule at the samples that the job had processed before, and r the mean of
the rate factors that policies set, an update with m gradients uses ``eta * f * r * m`` under the convention "linear"
and ``eta * f * r`` under "same"; a step on one of n replicas uses ``eta * f * r * n`` and ``eta * f * r``. A mini-batch
counts as one whatever its size.

Buffers such as batch-norm statistics live with their worker, also under gradient exchange; an average of replicas
averages them too, and an evaluation uses their average over the workers.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyrhythm.core import Settings, Sync, Ticket
from polyrhythm.core.workload import Lease
from polyrhythm.errors import DivergedError
from polyrhythm.sim.numerics import Evaluation, StepResult
from polyrhythm.training.averaging import Buffers, Replica, average, average_buffers, average_states
from polyrhythm.training.combine import weighted_mean
from polyrhythm.training.compensation import parse_compensation
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data import Task, epoch_order
from polyrhythm.training.flat import FlatModel
from polyrhythm.training.gradient import Gradient, Request, fastest
from polyrhythm.training.optimizer import OptimizerState, configured_optimizer
from polyrhythm.training.schedule import schedule_of
from polyrhythm.training.server import GlobalParameters, Push
from polyrhythm.training.tasks import build_task

WASTE = 0.4
"""Share of gradients computed ahead and then abandoned above which gradients are computed one by one."""


@dataclass(slots=True)
class Worker:
    """What one worker holds: its buffers, its replica if it has one, and what policies have set for it."""

    buffers: Buffers
    replica: Replica | None = None
    local_samples: int = 0
    lr_scale: float = 1.0
    momentum: float | None = None

    def configure(self, settings: Settings) -> None:
        """Take over what a policy sets; the engine sees to the batch size."""
        self.lr_scale = self.lr_scale if settings.lr_scale is None else settings.lr_scale
        self.momentum = self.momentum if settings.momentum is None else settings.momentum


@dataclass(slots=True)
class Step:
    """A step in flight or a gradient that waits: what it read, and what it came to once it is computed."""

    ticket: Ticket
    lease: Lease
    worker: Worker
    parameters: Tensor
    version: int
    samples_before: int
    lr_scale: float
    momentum: float | None
    reported: bool = False
    gradient: Gradient | None = None


class TrainedNumerics:
    """A model, its data and its optimizer behind the `Numerics` protocol.

    Args:
        task: data and model.
        config: optimizer, rates, schedule; its task fields are not read.
        workers: number of workers that are planned.
        seed: of the model's parameters and, unless the configuration has another, of the order of the samples.
    """

    def __init__(self, task: Task, config: TrainingConfig, workers: int, seed: int) -> None:
        self.task = task
        self.config = config
        self.train_samples = len(task.train)
        self.planned = workers
        self.data_seed = seed if config.data_seed is None else config.data_seed
        self.model = FlatModel(task.build(seed))
        self.server = server_of(config, self.model)
        self.gradients = fastest(task, self.model)
        self.schedule = schedule_of(config, config.workload_samples(self.train_samples))
        self.workers: dict[int, Worker] = {}
        self.gone: set[int] = set()
        self.buffers = Buffers(self.model.buffers, self.model.counters).copy()
        self.steps: dict[Ticket, Step] = {}
        self.ahead: dict[Ticket, Step] = {}
        self.readers: Counter[int] = Counter()
        self.returned: list[OptimizerState] = []
        self.averaged = False
        self.samples = 0
        self.computed = 0
        self.wasted = 0

    def start(self, ticket: Ticket, lease: Lease, settings: Settings | None) -> None:
        """A step reads the global parameters, or goes on with its worker's replica."""
        worker = self.workers.get(ticket.worker) or self._welcome(ticket.worker)
        if settings is not None:
            worker.configure(settings)
        parameters = self._read(worker) if ticket.exchange == "gradients" else self._replica(worker).vector
        version = self.server.version
        step = Step(ticket, lease, worker, parameters, version, self.samples, worker.lr_scale, worker.momentum)
        self.steps[ticket] = self.ahead[ticket] = step

    def report(self, ticket: Ticket) -> StepResult:
        """The gradient exists now; a replica moves.

        Raises:
            DivergedError: when the loss is not finite.
        """
        step = self.steps[ticket]
        gradient = step.gradient or self._compute(step)
        if not math.isfinite(gradient.loss):
            raise diverged(f"the loss of worker {ticket.worker} is {gradient.loss}", self.samples)
        step.reported = True
        self.samples += step.lease.samples
        if ticket.exchange == "replicas":
            self._step_locally(step, gradient)
        return StepResult(gradient.loss, gradient.sq_norm)

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        """Apply gradients to the global parameters, or average replicas."""
        if decision.what == "gradients":
            self._apply([self.steps.pop(ticket) for ticket in tickets], decision.weights)
            return
        workers = [self.workers.get(worker) or self._welcome(worker) for worker in decision.workers]
        replicas = [self._replica(worker) for worker in workers]
        self.averaged = True
        rate = self.config.delta_rate if decision.what == "deltas" else None
        average(self.server, replicas, decision.weights, delta_rate=rate, state=self.config.averaged_state)
        buffers = average_buffers([worker.buffers for worker in workers], decision.weights)
        for worker in workers:
            worker.buffers = buffers.copy()
            worker.local_samples = 0

    def void(self, tickets: list[Ticket]) -> None:
        """Forget steps; their samples were not processed."""
        for step in [self.steps.pop(ticket) for ticket in tickets]:
            self._forget(step)
            self.ahead.pop(step.ticket, None)
            self.wasted += step.gradient is not None and not step.reported
            self.samples -= step.lease.samples if step.reported else 0

    def leave(self, worker: int) -> None:
        """Forget the worker, its replica and the steps that only it holds; the last one's buffers stay."""
        if worker in self.workers:
            self.buffers = self._mean_buffers()
            self.samples -= self.workers.pop(worker).local_samples
        self.gone.add(worker)

    def parameters(self) -> Tensor:
        """The global parameters, or the replicas' average while replicas hold steps that were not averaged."""
        if not any(worker.local_samples for worker in self.workers.values()):
            return self.server.vector
        return weighted_mean([worker.replica.vector for worker in self.workers.values() if worker.replica])

    def evaluate(self) -> Evaluation:
        """Quality of `parameters` on the test set.

        Raises:
            DivergedError: when the parameters or the loss are no longer finite.
        """
        parameters = self.parameters()
        if not torch.isfinite(parameters).all():
            raise diverged("the parameters are not finite", self.samples)
        buffers = self._mean_buffers()
        self.model.load(parameters, buffers.vector, buffers.counters)
        accuracy, loss = self.task.evaluate(self.model.module)
        if not math.isfinite(loss):
            raise diverged(f"the loss on the test set is {loss}", self.samples)
        return Evaluation(accuracy, loss)

    def _welcome(self, worker: int) -> Worker:
        """A newcomer starts with the mean of the others' buffers."""
        self.gone.discard(worker)
        self.workers[worker] = Worker(self._mean_buffers())
        return self.workers[worker]

    def _mean_buffers(self) -> Buffers:
        if not self.workers or not (self.model.counters or self.model.buffers.numel()):
            return self.buffers.copy()
        return average_buffers([worker.buffers for worker in self.workers.values()])

    def _read(self, worker: Worker) -> Tensor:
        """The newest global parameters; the worker gives up its replica, and its optimizer's state may return."""
        if worker.replica is not None:
            self.returned.append(worker.replica.optimizer.state())
            worker.replica = None
        self.readers[self.server.version] += 1
        return self.server.read()

    def _replica(self, worker: Worker) -> Replica:
        if worker.replica is None:
            worker.replica = Replica.of(self.server)
        return worker.replica

    def _compute(self, step: Step) -> Gradient:
        """Compute this step's gradient and, where stacking pays, those of the longest in flight."""
        batch = self._batch(step)
        results = self.gradients.compute([self._request(other) for other in batch])
        for other, gradient in zip(batch, results, strict=True):
            other.gradient = gradient
            del self.ahead[other.ticket]
        self.computed += len(batch)
        return results[0]

    def _batch(self, step: Step) -> list[Step]:
        rows = 1 if self.wasted > WASTE * self.computed else self.gradients.rows
        others: Iterable[Step] = self.ahead.values() if rows > 1 else ()
        alike = [other for other in others if other is not step and other.lease.samples == step.lease.samples]
        return [step, *alike[: rows - 1]]

    def _request(self, step: Step) -> Request:
        epoch, start, stop = step.lease
        indices = epoch_order(self.train_samples, self.data_seed, epoch)[start:stop]
        return Request(step.parameters, indices, step.worker.buffers)

    def _step_locally(self, step: Step, gradient: Gradient) -> None:
        worker = step.worker
        del self.steps[step.ticket]
        scale = self.schedule(step.samples_before) * step.lr_scale * self._counts(self.planned - len(self.gone))
        assert worker.replica is not None
        worker.replica.optimizer.step(gradient.vector, scale, step.momentum)
        worker.local_samples += step.lease.samples

    def _apply(self, steps: list[Step], weights: tuple[float, ...] | None) -> None:
        """One update; the schedule stands where it stood before these mini-batches."""
        self._carry_state_back()
        before = self.samples - sum(step.lease.samples for step in steps)
        asked = sum(step.lr_scale for step in steps) / len(steps)
        scale = self.schedule(before) * asked * self._counts(len(steps))
        pushes = [self._push(step, weight) for step, weight in zip(steps, weights or [1.0] * len(steps), strict=True)]
        self.server.apply(pushes, scale, steps[-1].momentum)
        for step in steps:
            self._forget(step)

    def _forget(self, step: Step) -> None:
        """The last reader of a version gives its copy of the parameters back."""
        if step.ticket.exchange == "replicas":
            return
        self.readers[step.version] -= 1
        if not self.readers[step.version]:
            del self.readers[step.version]
            self.server.recycle(step.parameters)

    def _carry_state_back(self) -> None:
        """The first update after an average goes on with the state of the replicas' optimizers, such as momentum."""
        if self.returned and self.averaged:
            self.server.optimizer.load_state(average_states(self.returned))
        self.returned.clear()
        self.averaged = False

    def _push(self, step: Step, weight: float) -> Push:
        assert step.gradient is not None, f"{step.ticket} was combined before it was reported"
        return Push(step.gradient.vector, step.parameters, self.server.version - step.version, weight)

    def _counts(self, members: int) -> float:
        """Factor of the convention for an update or an average of so many members."""
        return float(members) if self.config.lr_convention == "linear" else 1.0


def server_of(config: TrainingConfig, model: FlatModel) -> GlobalParameters:
    """The global parameters of a job that starts from `model`; they are a copy."""
    vector = model.parameters.clone()
    optimizer = configured_optimizer(config, vector, model.layout)
    return GlobalParameters(vector, optimizer, parse_compensation(config.compensation))


def diverged(what: str, samples: int) -> DivergedError:
    """The error of a run that left the finite numbers."""
    return DivergedError(f"{what} after {samples} samples; lower training.learning_rate")


def build_numerics(config: TrainingConfig, workers: int, seed: int) -> TrainedNumerics:
    """Numerics of a configuration, with its data loaded.

    Args:
        config: what is trained and how.
        workers: number of workers that are planned.
        seed: of the run.

    Raises:
        DataError: if the data are missing or not as expected.
        ScenarioError: if the optimizer refuses its options.
    """
    return TrainedNumerics(build_task(config), config, workers, seed)
