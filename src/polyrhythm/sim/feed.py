"""Which samples a step computes on: those of its sample range and, with data injection, those that others share."""

import torch
from torch import Tensor

from polyrhythm.core import Ticket
from polyrhythm.core.workload import SampleRange
from polyrhythm.telemetry import RunResult
from polyrhythm.training.config import TrainingConfig
from polyrhythm.training.data.injection import Injection, Intake, own_batch, received
from polyrhythm.training.data.order import order_of
from polyrhythm.training.data.task import Split


class Feed:
    """Samples of the steps in flight.

    What a sharer sends is a part of the mini-batch that it has drawn last when the first report follows: under a
    policy that starts the workers together, that of the same step.
    """

    def __init__(self, train: Split, config: TrainingConfig, workers: int, seed: int) -> None:
        self.order = order_of(config.partition, train.targets, workers, seed)
        self.injection = Injection(*config.injection, seed) if config.injection else None
        self.intake = Intake()
        self.sample_bytes = sum(part[:1].nbytes for part in (train.inputs, train.targets))
        self._drawn: dict[int, Tensor] = {}
        self._fresh: list[Ticket] = []
        self._batches: dict[Ticket, Tensor] = {}
        self._sent = (workers - 1) * self._shared(config, workers)

    @property
    def injected_bytes(self) -> float:
        """Bytes that a sharer sends in a step."""
        return float(self._sent * self.sample_bytes)

    def draw(self, ticket: Ticket, sample_range: SampleRange) -> None:
        self._batches[ticket] = self._drawn[ticket.worker] = self.order.indices(sample_range)
        if self.injection is not None:
            self._fresh.append(ticket)

    def mix(self) -> None:
        """Hand round what is shared in the steps that have begun; before any of them is computed."""
        assert self.injection is not None, "asked for with injection only"
        for ticket in self._fresh:
            if ticket in self._batches:
                others = received(self.injection, ticket.number, ticket.worker, self._drawn, self.intake)
                self._batches[ticket] = torch.cat([self._batches[ticket], *others])
        self._fresh.clear()

    def samples(self, ticket: Ticket) -> int:
        return self._batches[ticket].numel()

    def take(self, ticket: Ticket) -> Tensor:
        """Their indices, once."""
        return self._batches.pop(ticket)

    def forget(self, ticket: Ticket) -> None:
        self._batches.pop(ticket, None)

    def leave(self, worker: int) -> None:
        self._drawn.pop(worker, None)

    def finish(self, result: RunResult) -> None:
        result.injected_samples = self.intake.samples
        result.injected_bytes = self.intake.samples * self.sample_bytes
        result.injected_by_source = self.intake.sorted()

    def _shared(self, config: TrainingConfig, workers: int) -> int:
        if self.injection is None or config.injection is None:
            return 0
        return self.injection.count(own_batch(config.batch_size, *config.injection, workers))
