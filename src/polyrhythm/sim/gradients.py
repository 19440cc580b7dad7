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
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from polyrhythm.core import Outer, Settings, Sync, Ticket
from polyrhythm.core.workload import SampleRange
from polyrhythm.errors import DivergedError
from polyrhythm.sim.feed import Feed
from polyrhythm.sim.numerics import Evaluation, StepResult
from polyrhythm.telemetry import RunResult
from polyrhythm.training.averaging import Buffers, Replica, average, average_buffers, average_states
from polyrhythm.training.codecs import Compressor
from polyrhythm.training.compression import parse_compression
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Task
from polyrhythm.training.data.tasks import build_task
from polyrhythm.training.divergence import LossWatch
from polyrhythm.training.flat import FlatModel
from polyrhythm.training.gradient import Gradient, GradientRequest, Gradients, fastest
from polyrhythm.training.optimizer import OptimizerState
from polyrhythm.training.schedule import schedule_of
from polyrhythm.training.server import Push, server_of, weighted_mean

WASTE = 0.4
"""Share of gradients computed ahead and then abandoned above which gradients are computed one by one."""


@dataclass(slots=True)
class PendingLocalStep:
    """A reported step on a replica that moves it once it is certain with which gradient: its own, or a mean."""

    gradient: Tensor
    lr_scale: float
    momentum: float | None
    samples: int


@dataclass(slots=True)
class ComputingWorker:
    """What one worker holds: its buffers, its replica if it has one, and what policies have set for it.

    `local_samples` are those that only its replica has; `drifted` tells whether the replica may differ from the global
    parameters.
    """

    buffers: Buffers
    replica: Replica | None = None
    last: PendingLocalStep | None = None
    local_samples: int = 0
    drifted: bool = False
    lr_scale: float = 1.0
    momentum: float | None = None
    gradients: Compressor | None = None
    deltas: Compressor | None = None

    def configure(self, settings: Settings) -> None:
        """Take over what a policy sets; the engine sees to the batch size."""
        self.lr_scale = 1.0 if settings.lr_scale is None else settings.lr_scale
        self.momentum = settings.momentum

    def move(self) -> None:
        if self.last is not None:
            assert self.replica is not None
            self.replica.step(self.last.gradient, self.last.lr_scale, self.last.momentum)
            self.buffers, self.last = self.replica.arrived() or self.buffers, None

    def parameters(self) -> Tensor:
        assert self.replica is not None
        if self.last is None:
            return self.replica.vector
        return self.replica.stepped(self.last.gradient, self.last.lr_scale, self.last.momentum)


@dataclass(slots=True)
class GradientStep:
    """A step in flight or a gradient that waits: what it read, and what it came to once it is computed."""

    ticket: Ticket
    samples: int
    worker: ComputingWorker
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
        threads: cores that gradients may be computed on, which changes no bit.
    """

    def __init__(self, task: Task, config: TrainingConfig, workers: int, seed: int, threads: int = 1) -> None:
        self.task, self.config = task, config
        self.train_samples = len(task.train)
        self.planned, self.seed = workers, seed
        self.compression = parse_compression(config.compression)
        self.pulled = getattr(torch, self.compression.pulled)
        self.feed = Feed(task.train, config, workers, seed if config.data_seed is None else config.data_seed)
        self.shards, self.injected_bytes = self.feed.order.shards, self.feed.injected_bytes
        self.model = FlatModel(task.build(seed))
        self.server = server_of(config, self.model)
        self.gradients = fastest(task, self.model, threads)
        self.prober: Gradients | None = None
        self.schedule = schedule_of(config, config.workload_samples(self.train_samples))
        self.workers: dict[int, ComputingWorker] = {}
        self.gone: set[int] = set()
        self.buffers = Buffers(self.model.buffers, self.model.counters).copy()
        self.steps: dict[Ticket, GradientStep] = {}
        self.ahead: dict[Ticket, GradientStep] = {}
        self.returned: list[OptimizerState] = []
        self.averaged = False
        self.met = False
        self.losses = LossWatch(config.divergence)
        self.samples = 0
        self.computed = 0
        self.wasted = 0

    def start(self, ticket: Ticket, sample_range: SampleRange, settings: Settings | None) -> None:
        worker = self.workers.get(ticket.worker) or self._welcome(ticket.worker)
        if settings is not None:
            worker.configure(settings)
        worker.move()
        parameters = self._read(worker) if ticket.exchange == "gradients" else self._replica(worker).vector
        version = self.server.version
        samples = sample_range.stop - sample_range.start
        step = GradientStep(
            ticket, samples, worker, parameters, version, self.samples, worker.lr_scale, worker.momentum
        )
        self.steps[ticket] = self.ahead[ticket] = step
        self.feed.draw(ticket, sample_range)

    def report(self, ticket: Ticket) -> StepResult:
        """The gradient exists now; a replica moves.

        Raises:
            DivergedError: when the loss is not finite or explodes; see `LossWatch`.
        """
        if self.feed.injection is not None:
            self.feed.mix()
        step = self.steps[ticket]
        gradient = step.gradient or self._compute(step)
        if why := self.losses.see(gradient.loss):
            raise diverged(f"the loss of worker {ticket.worker} {why}", self.samples)
        step.reported = True
        self.samples += step.samples
        if ticket.exchange == "replicas":
            self._step_locally(step, gradient)
        else:
            compressed = step.worker.gradients is not None
            step.gradient = gradient._replace(vector=sent(step.worker, gradient.vector)) if compressed else gradient
        return StepResult(gradient.loss, gradient.sq_norm)

    def sync(self, decision: Sync, tickets: list[Ticket]) -> None:
        if tickets:
            self._apply([self.steps.pop(ticket) for ticket in tickets], decision.weights)
        elif decision.what == "gradients":
            self._share_gradients(decision)
        else:
            self._average(decision)

    def void(self, tickets: list[Ticket]) -> None:
        steps = [self.steps.pop(ticket) for ticket in tickets]
        self.server.give_back([(s.parameters, s.version) for s in steps if s.ticket.exchange == "gradients"])
        for step in steps:
            self.ahead.pop(step.ticket, None)
            self.feed.forget(step.ticket)
            self.wasted += step.gradient is not None and not step.reported
            self.samples -= step.samples if step.reported else 0

    def leave(self, worker: int) -> None:
        """Forget the worker, its replica and the steps that only it holds; the last one's buffers stay."""
        self.feed.leave(worker)
        if worker in self.workers:
            self.buffers = self._mean_buffers()
            self.samples -= self.workers.pop(worker).local_samples
        self.gone.add(worker)

    def keep(self) -> tuple[Tensor, OptimizerState, Buffers, int]:
        return self.server.vector.clone(), self.server.optimizer.state(), self._mean_buffers().copy(), self.samples

    def go_back(self, kept: tuple[Tensor, OptimizerState, Buffers, int]) -> None:
        parameters, state, buffers, self.samples = kept
        self.server.assign(parameters)
        self.server.optimizer.load_state(state)
        self.losses = LossWatch(self.config.divergence, first=self.losses.first)
        self.returned, self.averaged = [], False
        for number, worker in self.workers.items():
            own = ComputingWorker(buffers.copy(), gradients=worker.gradients, deltas=worker.deltas)
            self.workers[number] = own

    def parameters(self) -> Tensor:
        """The global parameters, or the replicas' average while replicas hold steps that were not averaged."""
        if not any(worker.drifted for worker in self.workers.values()):
            return self.server.vector
        return weighted_mean([worker.parameters() for worker in self.workers.values() if worker.replica])

    def evaluate(self) -> Evaluation:
        """Quality of `parameters` on the test set, and of one replica where replicas have not met since the last time.

        Raises:
            DivergedError: when the parameters or the loss are no longer finite.
        """
        buffers = self._mean_buffers()
        accuracy, loss = self._quality(self.parameters(), buffers)
        one = next((worker for worker in self.workers.values() if worker.drifted and worker.replica), None)
        apart, self.met = one is not None and not self.met and len(self.workers) > 1, False
        return Evaluation(accuracy, loss, self._quality(one.parameters(), one.buffers)[0] if one and apart else None)

    def _quality(self, parameters: Tensor, buffers: Buffers) -> tuple[float, float]:
        if not math.isfinite(parameters.sum().item()):
            raise diverged("the parameters are not finite", self.samples)
        accuracy, loss = self.gradients.evaluate(parameters, buffers)
        if not math.isfinite(loss):
            raise diverged(f"the loss on the test set is {loss}", self.samples)
        return accuracy, loss

    def probe(self) -> float:
        self.prober = self.prober or fastest(self.task.probing(self.seed), self.model)
        return self.prober.evaluate(self.parameters(), self._mean_buffers()).loss

    def finish(self, result: RunResult) -> None:
        self.feed.finish(result)

    def _welcome(self, worker: int) -> ComputingWorker:
        """A newcomer starts with the mean of the others' buffers."""
        self.gone.discard(worker)
        ends = [Compressor.of(self.compression, self.seed, 2 * worker + end) for end in range(2)]
        self.workers[worker] = ComputingWorker(self._mean_buffers(), gradients=ends[0], deltas=ends[1])
        return self.workers[worker]

    def _mean_buffers(self) -> Buffers:
        if not self.workers or not (self.model.counters or self.model.buffers.numel()):
            return self.buffers.copy()
        return average_buffers([worker.buffers for worker in self.workers.values()])

    def _read(self, worker: ComputingWorker) -> Tensor:
        """The newest global parameters; the worker gives up its replica, and its optimizer's state may return."""
        if worker.replica is not None:
            self.returned.append(worker.replica.optimizer.state())
            worker.replica = None
        parameters = self.server.read()
        if self.pulled is not torch.float32:
            parameters.copy_(parameters.to(self.pulled))
        return parameters

    def _replica(self, worker: ComputingWorker) -> Replica:
        if worker.replica is None:
            worker.replica = Replica.of(self.server)
            worker.replica.compressor = worker.deltas
        return worker.replica

    def _compute(self, step: GradientStep) -> Gradient:
        """Compute this step's gradient and, where stacking pays, those of the longest in flight."""
        batch = self._batch(step)
        results = self.gradients.compute([self._request(other) for other in batch])
        for other, gradient in zip(batch, results, strict=True):
            other.gradient = gradient
            del self.ahead[other.ticket]
        self.computed += len(batch)
        return results[0]

    def _batch(self, step: GradientStep) -> list[GradientStep]:
        rows = 1 if self.wasted > WASTE * self.computed else self.gradients.rows
        others: Iterable[GradientStep] = self.ahead.values() if rows > 1 else ()
        size = self.feed.samples(step.ticket)
        alike = [other for other in others if other is not step and self.feed.samples(other.ticket) == size]
        return [step, *alike[: rows - 1]]

    def _request(self, step: GradientStep) -> GradientRequest:
        return GradientRequest(step.parameters, self.feed.take(step.ticket), step.worker.buffers)

    def _step_locally(self, step: GradientStep, gradient: Gradient) -> None:
        worker = step.worker
        del self.steps[step.ticket]
        scale = self.schedule(step.samples_before) * step.lr_scale * self._counts(self.planned - len(self.gone))
        worker.last = PendingLocalStep(gradient.vector, scale, step.momentum, step.samples)
        worker.local_samples += step.samples
        worker.drifted = True

    def _share_gradients(self, decision: Sync) -> None:
        """The last steps of these workers' replicas are made with the mean of their gradients."""
        workers = [self.workers[worker] for worker in decision.workers]
        steps = [worker.last for worker in workers if worker.last is not None]
        gradients = [sent(worker, step.gradient) for worker, step in zip(workers, steps, strict=True)]
        mean = weighted_mean(gradients, decision.weights)
        for worker, step in zip(workers, steps, strict=True):
            step.gradient = mean.clone()
            worker.local_samples -= step.samples
            worker.move()

    def _average(self, decision: Sync) -> None:
        """Combine replicas; who adopts the result gives up what only its own replica had."""
        contributors = self._moved(decision.workers)
        adopters = contributors if decision.adopters is None else self._moved(decision.adopters)
        average(
            self.server,
            [self._replica(worker) for worker in contributors],
            decision.weights,
            outer=(decision.outer or Outer(self.config.delta_rate)) if decision.what == "deltas" else None,
            adopters=[self._replica(worker) for worker in adopters],
            fragment=decision.fragment,
            delay=decision.delay,
            state=self.config.averaged_state,
        )
        buffers = average_buffers([worker.buffers for worker in contributors], decision.weights)
        for worker in adopters:
            worker.buffers = self._replica(worker).expect(buffers, decision.delay) or worker.buffers
            worker.drifted = worker.drifted and bool(decision.fragment or decision.delay)
        for worker in (*contributors, *adopters):
            worker.local_samples = 0
        self.averaged = self.met = True

    def _moved(self, workers: tuple[int, ...]) -> list[ComputingWorker]:
        moved = [self.workers.get(worker) or self._welcome(worker) for worker in workers]
        for worker in moved:
            worker.move()
        return moved

    def _apply(self, steps: list[GradientStep], weights: tuple[float, ...] | None) -> None:
        """One update; the schedule stands where it stood before these mini-batches."""
        self._carry_state_back()
        before = self.samples - sum([step.samples for step in steps])
        asked = sum([step.lr_scale for step in steps]) / len(steps)
        pushes = [self._push(step, weight) for step, weight in zip(steps, weights or [1.0] * len(steps), strict=True)]
        counts = self._counts(len(steps))
        self.server.apply(pushes, self.schedule(before) * asked * counts, steps[-1].momentum)
        self.server.give_back([(step.parameters, step.version) for step in steps])

    def _carry_state_back(self) -> None:
        """The first update after an average goes on with the state of the replicas' optimizers, such as momentum."""
        if self.returned and self.averaged:
            self.server.optimizer.load_state(average_states(self.returned))
        self.returned.clear()
        self.averaged = False

    def _push(self, step: GradientStep, weight: float) -> Push:
        assert step.gradient is not None, f"{step.ticket} was combined before it was reported"
        return Push(step.gradient.vector, step.parameters, self.server.version - step.version, weight)

    def _counts(self, members: int) -> float:
        """Factor of the convention for an update or an average of so many members."""
        return float(members) if self.config.lr_convention == "linear" else 1.0


def sent(worker: ComputingWorker, gradient: Tensor) -> Tensor:
    return gradient if worker.gradients is None else worker.gradients(gradient)


def diverged(what: str, samples: int) -> DivergedError:
    return DivergedError(f"{what} after {samples} samples; lower training.learning_rate")


def build_numerics(config: TrainingConfig, workers: int, seed: int, threads: int = 1) -> TrainedNumerics:
    """Numerics of a configuration, with its data loaded."""
    return TrainedNumerics(build_task(config), config, workers, seed, threads)
