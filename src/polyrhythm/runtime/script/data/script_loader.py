"""The job's mini-batches in place of those of the script's own loader."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import pairwise
from typing import Any, cast

import msgspec
from torch.utils.data import DataLoader, DistributedSampler

from polyrhythm.core.workload import even_steps
from polyrhythm.runtime.script.data.order import arrange, options_of, sampler_terms, shared_order, smallest_batch
from polyrhythm.runtime.script.data.reading import PassStart, Reading, read_in_order
from polyrhythm.runtime.script.notices import refuse, tell
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.worker.context import DrawnBatch
from polyrhythm.runtime.worker.loader import Accumulation, SessionLoader, Source, evenly, terms_of
from polyrhythm.runtime.worker.worker import Worker
from polyrhythm.training.data.fingerprint import content_of
from polyrhythm.training.data.partition import BY_LABEL, Dealt, parse_partition

GIVEN_UP = "what was left of this epoch is skipped, as the script had left its loop and come to a collective"


class Draws:
    """Mini-batches that a worker grants; those that the script has only looked at are dealt out again."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.position, self.together = 0, 1
        """Of the step of the mini-batch that the script has: samples of the epoch that the job had dealt out before it,
        and workers that make it together.
        """
        self._in_use = False
        self._looked_at: list[DrawnBatch] = []
        self._returned: deque[DrawnBatch] = deque()

    def begin_epoch(self, ready: Ready) -> None:
        self.worker.begin_epoch(ready)
        self._in_use = False
        self._looked_at.clear()

    def draw(self) -> DrawnBatch | None:
        return self._returned.popleft() if self._returned else self.worker.draw()

    def dealt(self, draw: DrawnBatch, part: float, last: bool) -> bool:
        if not self.worker.dealt(draw, part, last):
            return False
        self.position, self.together = draw.before, draw.workers
        if not self._in_use:
            self._looked_at.append(draw)
        return True

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
        ranks: processes that the script was written for.
        parts: mini-batches of one step.
        first_epoch: number of the epoch that the next pass is.
        counted_from: what the script calls the job's epoch 0.
        processed: samples of that epoch that each worker has processed already.
        dealt: see `SessionLoader`.
        own_batch: samples that a worker draws for a step, if others are injected.
        inject: see `SessionLoader`.
        at_end: called when all workers stand at the end of an epoch.
    """

    def __init__(
        self,
        loader: DataLoader[Any],
        worker: Worker,
        accumulation: Accumulation,
        *,
        workers: int,
        ranks: int,
        parts: int,
        first_epoch: int,
        counted_from: int,
        processed: tuple[int, ...],
        dealt: Dealt | None = None,
        own_batch: int | None = None,
        inject: Callable[[Any, int], Any] | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        assert loader.batch_size is not None, "checked before"
        options: dict[str, Any] = {"dealt": dealt, "inject": inject, **options_of(loader)}
        self._script_batch = loader.batch_size * parts
        size = own_batch or self._script_batch
        self._draws = Draws(worker)
        source = cast(Source, self._draws)  # whose generation need not be set from outside
        super().__init__(
            loader.dataset, size, source, accumulation, accumulate=parts, first_epoch=first_epoch, **options
        )
        self.loader, self._length = loader, len(loader.dataset)  # type: ignore[arg-type]
        self._start = PassStart(loader)
        self._workers, self._ranks, self._parts = workers, ranks, parts
        self._counted_from = counted_from
        self._first_epoch = first_epoch
        self._at_end = at_end
        self._ended = self._left = False
        self._steps_before = 0
        """Steps that the script alone would have made in the epochs before, since that of the session's start."""
        self._passed = 0
        """Epochs that the script has not begun, and that are over."""
        self._made_of: tuple[int, int] | None = None
        """The latest step of this epoch: its `position` and `together`, see `Draws`."""
        self.reading: Iterator[Any] | None = None
        """That of the warm-up step; one by processes may go on."""
        self._draws_seed = False
        """Whether torch would make an iterator for what comes next, and so draw a seed for its workers."""
        self._terms = terms_of(loader.dataset, dealt)
        if (
            dealt is None
            and isinstance(loader.sampler, DistributedSampler)
            and getattr(loader.sampler, "drop_last", False)
        ):
            self._samples = loader.sampler.total_size
        if loader.drop_last:
            width = workers * loader.batch_size
            self._samples -= self._samples % width
            if dealt is None:  # beside the warm-up step of one process, too, there are whole steps only
                processed = tuple(read + -read % width for read in processed)
        if self._samples < workers:
            raise refuse(f"{self._samples} samples an epoch cannot feed {workers} workers; use fewer workers")
        self._processed = tuple(min(one, self._samples) for one in processed)  # a mini-batch may be larger than that

    def __iter__(self) -> Iterator[Any]:
        if self._passed:
            self._passed -= 1
            return iter(())
        self._begin_epoch()
        return self._rest()

    def _begin_epoch(self) -> None:
        if self.epoch >= self._first_epoch:
            self._steps_before, self._made_of = self._steps_at_end, None
        self._ended = self._left = False
        self.epoch += 1
        self._accumulation.start()
        self._terms |= sampler_terms(self.loader)  # the script may have made it anew, or changed it
        self._options |= options_of(self.loader)
        processed, self._processed = self._processed, ()
        ready = self._ready(processed)
        self._draws.begin_epoch(msgspec.structs.replace(ready, script=self._counted_from, parts=self._parts))
        self._draws_seed |= self.epoch > self._first_epoch

    def renew(self, loader: DataLoader[Any], start: PassStart | None = None) -> None:
        """The script reads its next epoch by this loader, perhaps of another data set, as long as the first."""
        if (size := loader.batch_sampler.batch_size) != self.loader.batch_size:  # type: ignore[union-attr]
            raise refuse(
                f"the training loader had a batch size of {self.loader.batch_size} as the job began, and its batch "
                f"sampler has {size} now; a job's steps are equally large. Keep its batch size"
            )
        if (length := len(loader.dataset)) != self._length:  # type: ignore[arg-type]
            raise refuse(
                f"the training data had {self._length} samples as the job began, and have {length} now; a job's epochs "
                "are equally long. Keep its length"
            )
        if loader.dataset is not self.dataset:
            if self._sharded and isinstance(parse_partition(str(self._terms["partition"])), BY_LABEL):
                raise refuse("the shards are cut by the labels of the first epoch's data set; keep one data set")
            known = terms_of(self.dataset, None)
            self._terms = {name: word for name, word in self._terms.items() if name not in known}
            self._terms |= terms_of(loader.dataset, None)
            self.dataset, self._content = loader.dataset, content_of(loader.dataset)
        self.loader, self._start = loader, start or PassStart(loader)

    def again(self) -> Iterator[Any]:
        """The epoch under way, of which nothing was used, from its start; the sampler may have another order now."""
        self._accumulation.start()
        self._draws.take_back(draw for draw, *_ in self._drawn)
        self._draws_seed = True
        return self._rest()

    def _load(self, batches: Iterator[list[int]]) -> Iterator[Any]:
        draws, self._draws_seed = self._draws_seed, False
        reading, self.reading = self.reading, None
        if isinstance(reading, Reading) and not draws:
            if (anew := reading.followed_by(batches)) is None:
                return reading
            batches = anew
        with self._start.seed(drawn=draws):
            return read_in_order(self.loader, batches)

    def used(self) -> None:
        self._draws.used()

    @property
    def smallest(self) -> int:  # of its mini-batches, in samples
        return smallest_batch(self._samples, self._workers, self.batch_size)

    @property
    def steps_reached(self) -> int:
        """Steps that the script alone would have made by the end of the step that this worker is in.

        All who make it together know the same number.
        """
        if self._ended or self._left:
            return self._steps_at_end
        return self._steps_with(self._draws.position, self._draws.together)

    @property
    def steps_begun(self) -> int:
        """The same by its start."""
        return self.steps_to(self._draws.position // self._width)

    @property
    def all_together(self) -> bool:
        """Whether every rank makes the step under way, of as many samples as the script itself would take."""
        return self._draws.together == self._ranks and not (self._inject or self._sharded)

    def _steps_with(self, position: int, together: int) -> int:
        """The same by the end of the step at this position, which so many workers make together."""
        if self._inject:
            drawn = position + together * self.batch_size
            return self.steps_to(self._whole if drawn >= self._samples else drawn // self._width)
        return self.steps_to(position // self._width + (together if self._ranks == 1 else 1))

    @property
    def _steps_at_end(self) -> int:
        """The same by the end of the epoch, of which the job may have left out the rest."""
        if self._ended:
            return self.steps_to(self._whole)
        if self._left and (processed := self._draws.worker.processed) is not None:
            return self.steps_to(round(processed / self._width))
        return self._steps_before if self._made_of is None else self._steps_with(*self._made_of)

    @cached_property
    def _whole(self) -> int:
        return even_steps(self._samples, self._ranks, self._script_batch)

    @cached_property
    def _width(self) -> int:
        return self._ranks * self._script_batch

    def steps_to(self, steps: int) -> int:
        """The same to the step of that number of this epoch."""
        return self._steps_before + min(steps, self._whole)

    def stepped(self) -> None:
        """The script has made a step with its mini-batch."""
        if not (self._ended or self._left):
            self._made_of = self._draws.position, self._draws.together

    def _rest(self) -> Iterator[Any]:
        order = self._order(self.epoch)
        self._ended = self._left = finished = False
        while not finished:
            yield from self._batches(order)
            finished = self._source.end_epoch()
        self._ended = True
        if self._left:
            tell(GIVEN_UP)
        else:
            self._at_end()

    def end_early(self) -> None:
        """The script has left its loop over the epoch: stand at its end until all do, to get equal parameters."""
        if not (self._ended or self._left):
            self._run_out()

    def pass_epoch(self) -> None:
        """An epoch of others, in which this worker gets no mini-batch; the script's next pass is empty in its place."""
        self._begin_epoch()
        self._run_out()
        self._passed += 1

    def _run_out(self) -> None:
        self._left = True
        self._accumulation.start()
        self._draws.worker.run_out()
        self._at_end()

    def _divisor(self, parts: int) -> int:
        """A step of fewer mini-batches counts for less, as it does without us."""
        return parts

    def _cut(self, indices: list[int], draw: DrawnBatch) -> list[list[int]]:
        """Mini-batches as torch cuts them, equally many on all workers: the last step of an epoch may have fewer.

        An unequal share is cut evenly, since the largest of them must fit into the worker's memory.
        """
        size = self.batch_size // self._parts
        if draw.weight is None:
            return whole_and_rest(indices, size, self._parts, draw.largest)
        count = min(self._parts, -(-draw.largest // size))
        if len(indices) < count:
            raise refuse(
                f"the policy deals a share of {len(indices)} samples, and the script adds up the gradients of {count} "
                "mini-batches for a step; use another policy, such as bsp"
            )
        return evenly(indices, count)

    def _order(self, epoch: int) -> list[int]:
        if self._sharded:
            return []
        order = shared_order(self._start.sampler, len(self.loader.dataset), epoch)  # type: ignore[arg-type]
        if not isinstance(self.loader.sampler, DistributedSampler) or self._inject:
            return order
        return arrange(order[: self._samples], self._workers, self.batch_size // self._parts, self._parts)


def whole_and_rest(indices: list[int], size: int, parts: int, largest: int) -> list[list[int]]:
    """Mini-batches of `size` and a smaller last one, `parts` at most; as many as of `largest` indices.

    >>> whole_and_rest([1, 2, 3, 4, 5], 2, 4, largest=5)
    [[1, 2], [3, 4], [5]]
    >>> whole_and_rest([1, 2, 3, 4], 2, 4, largest=5)
    [[1], [2], [3, 4]]
    >>> whole_and_rest([1, 2, 3, 4, 5], 2, 2, largest=5)
    [[1, 2], [3, 4, 5]]
    """
    count = min(parts, -(-largest // size), len(indices))
    if len(indices) <= (count - 1) * size:
        return evenly(indices, count)
    starts = [*range(0, count * size, size)]
    return [indices[start:stop] for start, stop in pairwise([*starts, len(indices)])]
