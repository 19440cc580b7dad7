"""Data injection among real workers: samples go from loader to loader, point to point, before each step.

All members of a synchronous phase make the same steps, so each knows by itself who sends in a step, and receives from
exactly these. A message has the number of its samples and room for as many as there can be; what a sample is made of
the receiver sees from its own mini-batch. When a member is lost, a mini-batch stays as it is: the exchange after the
step fails too, and what comes next is decided there.
"""

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from polyrhythm.errors import GroupError, UsageError
from polyrhythm.runtime.collectives.membership import Generation
from polyrhythm.runtime.collectives.ops import InFlight, launch
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.worker import Worker
from polyrhythm.training.codecs import as_bytes
from polyrhythm.training.data.injection import Injection, Intake

HEADER = 8
"""Bytes of the number of samples in a message."""
TAG = 7
"""Of these messages; collectives have tags of their own."""


class Injector:
    """Gives a mini-batch what others share, and shares what is this worker's to share.

    Args:
        worker: knows the phase and its members.
        exchange: has their group.
        injection: who shares what.
        own_batch: samples that a worker draws for a step; the last of an epoch may have one more.
    """

    def __init__(self, worker: Worker, exchange: DDPExchange, injection: Injection, own_batch: int) -> None:
        self._worker, self._exchange = worker, exchange
        self._injection = injection
        self._capacity = injection.count(own_batch + 1)
        self._place = (-1, -1)
        self._step = 0
        self.intake = Intake()
        self.bytes = 0

    def __call__(self, batch: Any, epoch: int) -> Any:
        """The mini-batch with what others share after its own samples.

        Raises:
            UsageError: under a policy that lets workers run apart, or if samples are not all of one shape.
        """
        phase, rank = self._worker.phase, self._worker.rank
        assert phase is not None, "a mini-batch is granted in a phase"
        if self._worker.apart:
            raise UsageError(
                f"injection needs workers that make their steps together, but policy {phase.policy} lets them run "
                "apart; use bsp, local, fedavg, diloco or selsync, or no injection"
            )
        step = self._number(epoch, phase.number)
        if len(phase.members) == 1 or self._exchange.failure is not None:
            return batch
        parts = tensors_of(batch)
        sharers = self._injection.sharers(step, phase.members)
        try:
            received = self._swap(self._exchange.generation, parts, step, rank, sharers)
        except GroupError:
            return batch
        return with_tensors(batch, iter([torch.cat(column) for column in zip(parts, *received, strict=True)]))

    def _number(self, epoch: int, phase: int) -> int:
        """The same number on all members, and another in each step of the job."""
        self._step = self._step + 1 if self._place == (epoch, phase) else 0
        self._place = epoch, phase
        return (epoch << 48) | (phase << 32) | self._step

    def _swap(
        self, group: Generation, parts: list[Tensor], step: int, rank: int, sharers: tuple[int, ...]
    ) -> list[list[Tensor]]:
        room = HEADER + self._capacity * sample_bytes(parts)
        sends = self._share(group, parts, step, rank, room) if rank in sharers else []
        rooms = {sharer: torch.empty(room, dtype=torch.uint8) for sharer in sharers if sharer != rank}
        reductions = [
            launch(group, "recv", [message], [message], group.members.index(sharer), TAG)
            for sharer, message in rooms.items()
        ]
        for reduction in (*reductions, *sends):
            reduction.wait()
        return [self._unpack(message, parts, sharer) for sharer, message in rooms.items()]

    def _share(self, group: Generation, parts: list[Tensor], step: int, rank: int, room: int) -> list[InFlight]:
        rows = torch.tensor(self._injection.rows(step, rank, len(parts[0])))
        chosen = [as_bytes(part[rows]).view(-1) for part in parts]
        filled = torch.cat([torch.tensor([len(rows)]).view(torch.uint8), *chosen])
        message = torch.cat([filled, torch.zeros(room - len(filled), dtype=torch.uint8)])
        others = [position for position, member in enumerate(group.members) if member != rank]
        return [launch(group, "send", [message], [message], other, TAG) for other in others]

    def _unpack(self, message: Tensor, parts: list[Tensor], sharer: int) -> list[Tensor]:
        rows = int(message[:HEADER].view(torch.int64))
        if not 0 < rows <= self._capacity:
            raise UsageError(
                f"rank {sharer} shares {rows} samples where at most {self._capacity} are expected; give all workers "
                "the same batch_size and injection"
            )
        self.intake.add(sharer, self._worker.rank, rows)
        self.bytes += rows * sample_bytes(parts)
        unpacked, start = [], HEADER
        for part in parts:
            size = rows * row_bytes(part)
            numbers = message[start : start + size].clone().view(part.dtype)
            unpacked.append(numbers.view(rows, *part.shape[1:]))
            start += size
        return unpacked


def row_bytes(part: Tensor) -> int:
    return part[:1].numel() * part.element_size()


def sample_bytes(parts: list[Tensor]) -> int:
    return sum(map(row_bytes, parts))


def tensors_of(batch: Any) -> list[Tensor]:
    """The tensors of a mini-batch, each with one row a sample.

    >>> [part.shape for part in tensors_of({"x": torch.zeros(3, 2), "y": [torch.zeros(3)]})]
    [torch.Size([3, 2]), torch.Size([3])]

    Raises:
        UsageError: for a mini-batch that is made of other things.
    """
    if isinstance(batch, Tensor):
        return [batch.contiguous()]
    if isinstance(batch, dict):
        batch = list(batch.values())
    if not isinstance(batch, list | tuple):
        raise UsageError(
            f"injection can move tensors, also in lists, tuples and dicts, but not a {type(batch).__name__}; "
            "give a collate_fn that makes tensors"
        )
    parts = [part for entry in batch for part in tensors_of(entry)]
    if len({len(part) for part in parts}) > 1:
        raise UsageError(f"injection needs one row a sample but tensors have {[len(part) for part in parts]} rows")
    return parts


def with_tensors(batch: Any, parts: Iterator[Tensor]) -> Any:
    """A mini-batch of the same form with other tensors.

    >>> with_tensors([torch.zeros(1), {"y": torch.zeros(1)}], iter([torch.ones(1), torch.ones(1)]))
    [tensor([1.]), {'y': tensor([1.])}]
    """
    if isinstance(batch, Tensor):
        return next(parts)
    if isinstance(batch, dict):
        return {key: with_tensors(entry, parts) for key, entry in batch.items()}
    entries = [with_tensors(entry, parts) for entry in batch]
    if isinstance(batch, list):
        return entries
    return type(batch)(*entries) if hasattr(batch, "_fields") else tuple(entries)
