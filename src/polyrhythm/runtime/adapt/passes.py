"""One run of the script over one of its loaders: what ``for batch in loader`` goes through."""

from collections.abc import Iterator
from itertools import chain
from typing import Any, Protocol

from torch.utils.data import DataLoader

from polyrhythm.runtime.accumulation import Accumulation
from polyrhythm.runtime.adapt.order import arrange, options_of, shared_order
from polyrhythm.runtime.loader import SessionLoader
from polyrhythm.runtime.participant import Participant


class Listener(Protocol):
    """Who is told of a pass; see `polyrhythm.runtime.adapt.script.Script`."""

    def before_batch(self, run: "Pass") -> None:
        """The script asks for a mini-batch; the pass may get another source."""

    def given(self, run: "Pass") -> None:
        """The script gets one."""

    def finished(self, run: "Pass") -> None:
        """There is none left."""


class Pass:
    """An iterator over mini-batches whose source can change between two of them.

    Args:
        listener: told of every mini-batch.
        loader: the script's.
        source: mini-batches; None if the listener is to set it before the first.
    """

    def __init__(self, listener: Listener, loader: DataLoader[Any], source: Iterator[Any] | None) -> None:
        self._listener = listener
        self.loader, self.source = loader, source
        self.batches = 0
        self.steps = 0
        self.used = False
        """Whether the script has begun to compute a step from it."""
        self.kept: list[Any] = []
        """Mini-batches given before the first use, if they have to be given again."""

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self.loader)

    def __next__(self) -> Any:
        self._listener.before_batch(self)
        assert self.source is not None, "the listener has set it"
        try:
            batch = next(self.source)
        except StopIteration:
            self._listener.finished(self)
            raise
        self.batches += 1
        self._listener.given(self)
        return batch


class ScriptLoader(SessionLoader[Any]):
    """The job's mini-batches in place of those of the script's own loader.

    Args:
        loader: the script's, whose sampler gives the order of each epoch.
        participant: grants them.
        accumulation: counts them.
        workers: of the job as it started.
        parts: mini-batches of one step.
        first_epoch: number of the epoch that the next pass is.
        processed: samples of that epoch that are behind the job already.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        participant: Participant,
        accumulation: Accumulation,
        *,
        workers: int,
        parts: int,
        first_epoch: int,
        processed: int,
    ) -> None:
        assert loader.batch_size is not None, "checked before"
        options = options_of(loader)
        size = loader.batch_size * parts
        super().__init__(
            loader.dataset, size, participant, accumulation, accumulate=parts, first_epoch=first_epoch, **options
        )
        self.loader = loader
        self._participant = participant
        self._workers, self._parts, self._processed = workers, parts, processed
        if loader.drop_last:
            self._samples -= self._samples % (workers * size)

    def __iter__(self) -> Iterator[Any]:
        """One epoch of the job."""
        self.epoch += 1
        self._accumulation.start()
        order = self._order(self.epoch)
        processed, self._processed = self._processed, 0
        self._participant.begin_epoch(self.epoch, self._samples, self.batch_size, self._ahead, processed)
        finished = False
        while not finished:
            yield from self._batches(order)
            finished = self._participant.end_epoch()

    def _order(self, epoch: int) -> list[int]:
        order = shared_order(self.loader.sampler, len(self.loader.dataset))  # type: ignore[arg-type]
        return arrange(order, self._workers, self.batch_size // self._parts, self._parts)


def replay(batches: list[Any], source: Iterator[Any]) -> Iterator[Any]:
    """A source that begins with what was given before."""
    return chain(batches, source)
