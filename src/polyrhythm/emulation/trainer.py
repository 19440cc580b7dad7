"""The training script of the workers that `polyrhythm.emulation.local` starts: a task with a session, at a given pace.

At the end of an epoch all workers have the same parameters, and the first to get there keeps them for an evaluation
after the job, so that evaluating takes nobody's time.
"""

import os
import sys
from pathlib import Path

import msgspec
import torch
from torch import nn
from torch.optim import Optimizer
from torch.utils.data import TensorDataset

from polyrhythm.emulation.pace import Emulation, Pacer
from polyrhythm.errors import BROKEN, BrokenPolicyError, DivergedError, PolyrhythmError
from polyrhythm.runtime.worker.session import Session, session
from polyrhythm.telemetry.files import put_whole
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.task import Task, epoch_order
from polyrhythm.training.data.tasks import build_task
from polyrhythm.training.divergence import DIVERGED, LossWatch
from polyrhythm.training.optimizer import build, configured_options, optimizer_class
from polyrhythm.training.schedule import schedule_of


class TrainerPlan(msgspec.Struct, frozen=True):
    """What all workers of a job are to do; `emulations` has one entry a worker."""

    training: TrainingConfig
    seed: int
    epochs: int
    emulations: list[Emulation]


class Received(msgspec.Struct):
    bytes: int
    counts: dict[int, dict[int, int]]


class Trainer:
    def __init__(self, plan: TrainerPlan, rank: int, task: Task) -> None:
        config = plan.training
        self.plan, self.task = plan, task
        self.model = task.build(plan.seed)
        self.rate = config.learning_rate * (len(plan.emulations) if config.lr_convention == "linear" else 1)
        self.optimizer = script_optimizer(config, self.model, self.rate)
        self.schedule = schedule_of(config, plan.epochs * len(task.train))
        self.losses = None if config.rollback else LossWatch(config.divergence)
        self.pacer = Pacer(plan.emulations[rank], config.batch_size)

    def train(self, folder: Path) -> None:
        """All epochs; the order of the samples is that of the simulator."""
        config, samples = self.plan.training, len(self.task.train)
        seed = self.plan.seed if config.data_seed is None else config.data_seed
        with session(self.model, self.optimizer) as job:
            self.pacer.delay(job._client)
            for epoch in range(self.plan.epochs):
                shared = config.partition == "shared"
                order = epoch_order(samples, seed, epoch) if shared else torch.arange(samples)
                for batch in job.loader(
                    self.dataset(order),
                    config.batch_size,
                    shuffle=False,
                    seed=seed,
                    partition=config.partition,
                    labels=self.task.train.targets,
                    injection=config.injection,
                ):
                    self.step(job, *self.samples(*batch))
                keep(self.model, snapshot(folder, epoch))
            if config.injection is not None:
                keep_injected(job, folder)

    def dataset(self, order: torch.Tensor) -> TensorDataset:
        """Samples in this order: their indices, or themselves if they are to travel between workers."""
        if self.plan.training.injection is None:
            return TensorDataset(order)
        return TensorDataset(self.task.train.inputs[order], self.task.train.targets[order])

    def samples(self, first: torch.Tensor, targets: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
        return self.task.batch(first) if targets is None else (self.task.prepared(first), targets)

    def step(self, job: Session, inputs: torch.Tensor, targets: torch.Tensor) -> None:
        """One mini-batch.

        Raises:
            DivergedError: when the loss is not finite or explodes, see `LossWatch`; the session sees to it if the job
                is to go back.
        """
        self.pacer.start_step(len(targets))
        for group in self.optimizer.param_groups:
            group["lr"] = self.rate * self.schedule(job.samples)
        self.optimizer.zero_grad()
        loss = self.task.loss(self.model(inputs), targets)
        if self.losses is not None and (why := self.losses.see(loss.item())):
            raise DivergedError(
                f"the loss of worker {job.rank} {why} after {job.samples} samples; lower training.learning_rate"
            )
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()


def script_optimizer(config: TrainingConfig, model: nn.Module, rate: float) -> Optimizer:
    """The optimizer that a script would make; the job scales its rate to what an update combines."""
    kind, options = optimizer_class(config.optimizer), {**configured_options(config), "lr": rate}
    return build(kind, [{"params": list(model.parameters())}], options)


def snapshot(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch}.pt"


def keep(model: nn.Module, path: Path) -> None:
    """Write the model's state, unless another worker has; nobody ever sees half of it."""
    if path.exists():
        return
    with put_whole(path) as aside:
        torch.save(model.state_dict(), aside)


def keep_injected(job: Session, folder: Path) -> None:
    received = Received(job.metrics["injected_bytes"], job.metrics["injected"])
    (folder / f"injected-{job.rank}.json").write_bytes(msgspec.json.encode(received))


def main(folder: Path) -> int:
    plan = msgspec.msgpack.decode((folder / "plan").read_bytes(), type=TrainerPlan)
    torch.set_num_threads(1)
    try:
        Trainer(plan, int(os.environ["RANK"]), build_task(plan.training)).train(folder)
    except PolyrhythmError as error:
        print(error, file=sys.stderr)
        return DIVERGED if isinstance(error, DivergedError) else BROKEN if isinstance(error, BrokenPolicyError) else 1
    return 0
