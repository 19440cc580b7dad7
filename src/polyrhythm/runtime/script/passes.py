"""One run of the script over one of its loaders: what ``for batch in loader`` goes through."""

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol, cast

from torch.utils.data import DataLoader, DistributedSampler

from polyrhythm.core.epoch_plan import EpochPlan
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.script.order import arrange, options_of, shared_order
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.worker.context import DrawnBatch
from polyrhythm.runtime.worker.loader import Accumulation, SessionLoader, Source
from polyrhythm.runtime.worker.worker import Worker


class PassListener(Protocol):
    """Who is told of a pass; see `polyrhythm.runtime.script.script.Script`."""

    def before_batch(self, run: "Pass") -> None:
        """The script asks for a mini-batch; the pass may get another source."""

    def given(self, run: "Pass") -> None: ...

    def finished(self, run: "Pass") -> None: ...


class Pass:
    """A run of the script over mini-batches whose source can change between two of them.

    Args:
        listener: told of every mini-batch.
        loader: the script's.
        source: mini-batches; None if the listener is to set it before the first.
    """

    def __init__(self, listener: PassListener, loader: DataLoader[Any], source: Iterator[Any] | None) -> None:
        self._listener = listener
        self.loader, self.source = loader, source
        self.batches = self.unstepped = self.steps = 0
        """Mini-batches given, those since the last step, and steps."""
        self.used = self.over = False
        """Whether the script has computed something that a step may follow, and whether no mini-batch is left."""
        self._held: weakref.ref[PassIterator] | None = None
        self.looking = False
        """Whether the script has evaluated the model on what it got, and trains on none of it."""

    def iterator(self) -> "PassIterator":
        """What the script goes through; when it has dropped that, the run is over."""
        made = PassIterator(self)
        self._held = weakref.ref(made)
        return made

    @property
    def inside(self) -> bool:
        return not self.over and self._held is not None and self._held() is not None

    def next_batch(self) -> Any:
        self._listener.before_batch(self)
        assert self.source is not None, "the listener has set it"
        try:
            batch = next(self.source)
        except StopIteration:
            self.over = True
            self._listener.finished(self)
            raise
        self.batches += 1
        self.unstepped += 1
        self._listener.given(self)
        return batch

    def step(self) -> None:
        self.steps += 1
        self.unstepped = 0


class PassIterator:
    def __init__(self, run: Pass) -> None:
        self._run = run

    def __iter__(self) -> Iterator[Any]:
        return self

    def __len__(self) -> int:
        return len(self._run.loader)

    def __next__(self) -> Any:
        return self._run.next_batch()


class Draws:
    """Mini-batches that a worker grants; those that the script has only looked at are dealt out again."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.position = 0
        """First position of the mini-batch that the script has."""
        self._in_use = False
        self._looked_at: list[DrawnBatch] = []
        self._returned: deque[DrawnBatch] = deque()

    @property
    def generation(self) -> int:
        return self.worker.generation

    def begin_epoch(self, ready: Ready) -> None:
        self.worker.begin_epoch(ready)
        self._in_use = False
        self._looked_at.clear()

    def draw(self) -> DrawnBatch | None:
        return self._returned.popleft() if self._returned else self.worker.draw()

    def dealt(self, draw: DrawnBatch) -> None:
        self.position = draw.sample_ranges[0].start
        if not self._in_use:
            self._looked_at.append(draw)
        self.worker.dealt(draw)

    def end_epoch(self) -> bool:
        return self.worker.end_epoch()

    def used(self) -> None:
        """What the script got in this epoch, and gets from now on, is not dealt out again."""
        self._in_use = True
        self._looked_at.clear()

    def take_back(self, fetched: Iterable[DrawnBatch]) -> None:
        """Deal out again what the script has looked at, what was `fetched` for it, and what was left of these."""
        draws = {id(draw): draw for draw in (*self._looked_at, *fetched, *self._returned)}
        self._returned = deque(draws.values())
        self._in_use = False
        self._looked_at.clear()


class ScriptLoader(SessionLoader[Any]):
    """The job's mini-batches in place of those of the script's own loader.

    Args:
        loader: the script's, whose sampler gives the order of each epoch.
        worker: grants them.
        accumulation: counts them.
        workers: of the job as it started.
        parts: mini-batches of one step.
        first_epoch: number of the epoch that the next pass is.
        processed: samples of that epoch that the job has processed already.
        at_end: called when all workers stand at the end of an epoch.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        worker: Worker,
        accumulation: Accumulation,
        *,
        workers: int,
        parts: int,
        first_epoch: int,
        processed: int,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        assert loader.batch_size is not None, "checked before"
        options = options_of(loader)
        size = loader.batch_size * parts
        self._draws = Draws(worker)
        source = cast(Source, self._draws)  # whose generation need not be set from outside
        super().__init__(
            loader.dataset, size, source, accumulation, accumulate=parts, first_epoch=first_epoch, **options
        )
        self.loader = loader
        self._workers, self._parts, self._processed = workers, parts, processed
        self._at_end = at_end
        self._ended = False
        if loader.drop_last:
            self._samples -= self._samples % (workers * size)

    def __iter__(self) -> Iterator[Any]:
        self.epoch += 1
        self._accumulation.start()
        processed, self._processed = self._processed, 0
        self._draws.begin_epoch(self._ready(processed))
        return self._rest()

    def again(self) -> Iterator[Any]:
        """The epoch under way, of which nothing was used, from its start; the sampler may have another order now."""
        self._accumulation.start()
        self._draws.take_back(draw for draw, _, _ in self._drawn)
        return self._rest()

    def used(self) -> None:
        self._draws.used()

    @property
    def steps_reached(self) -> int:
        """Steps of workers in synchronous mode to the position that the job has dealt out to this worker last."""
        if self._ended:
            return self.steps_to(self.epoch + 1, 0)
        width = self._workers * self.batch_size
        return self.steps_to(self.epoch, self._draws.position // width + 1)

    def steps_to(self, epoch: int, steps: int) -> int:
        """The same to the step of that number of an epoch."""
        whole = EpochPlan((SampleRange(epoch, 0, self._samples),), self._workers, self.batch_size)
        return epoch * whole.steps + min(steps, whole.steps)

    def _rest(self) -> Iterator[Any]:
        order = self._order(self.epoch)
        self._ended = finished = False
        while not finished:
            yield from self._batches(order)
            finished = self._source.end_epoch()
        self._ended = True
        self._at_end()

    def _order(self, epoch: int) -> list[int]:
        order = shared_order(self.loader.sampler, len(self.loader.dataset), epoch)  # type: ignore[arg-type]
        if not isinstance(self.loader.sampler, DistributedSampler):
            return order
        return arrange(order, self._workers, self.batch_size // self._parts, self._parts)
