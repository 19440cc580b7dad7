"""Data that the job cannot deal out: streams, samplers and batch samplers of the script's own, or no loader at all.

Every worker reads its own; the job counts the samples that the model sees, and an epoch ends when the script's does.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Any

from torch import Tensor
from torch.utils.data import DataLoader

from polyrhythm.core.workload import UNKNOWN
from polyrhythm.runtime.script.data.alone import every_nth
from polyrhythm.runtime.script.data.loaders import Loaders, TrainingLoaders, length_of
from polyrhythm.runtime.script.data.passes import Pass
from polyrhythm.runtime.script.notices import refuse
from polyrhythm.runtime.wire.protocol import Ready
from polyrhythm.runtime.worker.loader import Accumulation
from polyrhythm.runtime.worker.worker import Worker

AS_TORCHRUN = (
    "each rank reads its own mini-batches, as under torchrun; what a worker that ends has not read is read by nobody"
)
EVERY_NTH = (
    "each worker takes one of every {} mini-batches that one process would read; what a worker that ends has not read "
    "is read by nobody"
)
LOOKED_UP = (
    "the loop looks something up by the number of its mini-batch, so no worker takes more of them than its loader has"
)
COMPARED = (
    "the loop compares the number of its mini-batch with its loader's length, so each worker takes as many as its "
    "loader has"
)
HANDED = "one rank reads the mini-batches and hands them on, as under torchrun; without it the others have no data"
SOME_READ = "some ranks read loaders, and others none: each has its own data, as under torchrun"
DRAWN = (
    "the script draws its data itself: each worker others, or all the same if it draws nothing at random; the job "
    "counts samples and does not know which"
)


class OwnData:
    """The part of a session's loader, for steps whose data it does not know.

    Args:
        worker: asks for each step.
        accumulation: told of each.
        batch_size: samples of a step, about.
        workers: of the job as it started.
        stretch: steps that the script alone would make in one of all workers.
        first_epoch: number of the epoch under way.
        counted_from: number by which the script calls the job's epoch 0.
        at_end: called when all workers stand at the end of an epoch.
    """

    def __init__(
        self,
        worker: Worker,
        accumulation: Accumulation,
        *,
        batch_size: int,
        workers: int,
        stretch: int,
        first_epoch: int,
        counted_from: int | None = None,
        at_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._worker, self._accumulation, self._at_end = worker, accumulation, at_end
        self._batch_size, self._workers, self._stretch = batch_size, workers, stretch
        self.epoch, self._counted_from = first_epoch - 1, counted_from
        self.open, self.first = False, True
        """Whether an epoch is under way, and whether it is yet to be the first."""
        self._steps = 0

    def begin(self, steps: int | None, made: int = 0) -> None:
        """An epoch begins, of so many steps on each worker if that is known, `made` of them before the session."""
        self.epoch += 1
        self._accumulation.start()
        width = self._workers * self._batch_size
        samples, processed = (UNKNOWN, 0) if steps is None else (max(1, steps) * width, made * width)
        counts = self.epoch, samples, self._batch_size
        self._worker.begin_epoch(Ready(*counts, processed=(processed,), script=self._counted_from, own=True))
        if self._worker.shares:
            raise refuse("the script reads its data itself, which cannot be shared out in unequal parts; use bsp")
        self.open, self.first = True, False

    def step(self, samples: int) -> None:
        """The script has computed gradients on so many samples, if they could be counted, and is about to step."""
        draw = self._worker.draw()
        while draw is None and not self._worker.left:  # more than was planned, or of an epoch that is over
            self.end()
            self.begin(None)
            draw = self._worker.draw()
        if draw is not None:
            self._accumulation.given(samples or self._batch_size, True)
            self._worker.dealt(draw)
            self._steps += 1

    def end(self) -> None:
        """The data of this worker are over."""
        if self.open:
            self.open = False
            self._worker.run_out()
            self._at_end()

    def pass_epoch(self) -> None:
        """An epoch of others, in which this worker makes no step."""
        self.begin(0)
        self.end()

    @property
    def first_samples(self) -> int:
        """Of the first step, about."""
        return self._batch_size

    @property
    def steps_begun(self) -> int:
        """Steps that the script alone would have made before the one at hand."""
        return max(0, self._steps - 1) * self._stretch

    @property
    def steps_reached(self) -> int:
        """The same after it."""
        return self._steps * self._stretch


class OwnReading:
    """Follows what the script reads for itself, from its mini-batches to the steps that are counted.

    Args:
        data: counts them.
        outlives: whether the script may go on with its loop when this pass is over.
        parts: mini-batches of a step.
        rank: of this worker.
        split: workers among whom the mini-batches of one process are split; 1 if each has a loader for itself.
    """

    def __init__(self, data: OwnData, outlives: Callable[[Pass], bool], *, parts: int, rank: int, split: int) -> None:
        self.data, self._outlives = data, outlives
        self._parts, self._rank, self._split = parts, rank, split
        self._loaders = TrainingLoaders(Loaders(), ())
        self._passes: dict[int, Pass] = {}
        """The latest over each training loader, by its number."""
        self._begun: Counter[int] = Counter()
        """Passes over each of these."""
        self._unused: Counter[int] = Counter()
        """Mini-batches of these that no step has used yet."""
        self._samples = self._stepped_samples = 0
        """That the model was given since the last step, and before it for that step."""
        self._learns = split == 1
        self._first, self._size = parts, 0
        """Where the first step of an epoch has fewer mini-batches than others: how many, and samples of one."""
        self._aside: dict[int, tuple[Pass, int]] = {}
        """Of each loader whose pass is under way, another one, with its mini-batches: the script may only look."""
        self._over = False
        """Whether a pass is over whose end does not say that the script has left its loop."""
        self.before_end: Callable[[], None] = lambda: None
        """Called before an epoch ends, in which several optimizers may have a step of the job under way."""

    def take_over(self, passes: Iterable[Pass], loaders: Loaders) -> None:
        """From here on these passes are split, and all passes over such loaders.

        Args:
            passes: those that are under way.
            loaders: of the script.
        """
        self._passes = dict(enumerate({each.loader: each for each in passes}.values()))
        self._loaders = TrainingLoaders(loaders, [each.loader for each in self._passes.values()])
        furthest = max([each.batches for each in self._passes.values()], default=0)
        for number, each in self._passes.items():
            self._begun[number] += 1
            self._unused[number] = max(0, each.batches - each.steps * self._parts)
            if self._split > 1:
                assert each.source is not None, "it has given a mini-batch"
                begun = islice(each.source, furthest - each.batches)  # belong to what others have given already
                each.source = chain(begun, islice(each.source, self._rank, None, self._split))

    @property
    def reads(self) -> bool:
        """Whether the data come from any loader."""
        return bool(self._passes)

    @property
    def inside(self) -> bool:
        """Whether the script is in a loop over data of its own."""
        return any(each.inside for each in self._passes.values())

    def before_batch(self, run: Pass) -> None:
        """A mini-batch is asked for; with the first of a pass, the pass before is over or left."""
        if run.batches or (number := self._loaders.number(run.loader)) is None:
            return
        if (before := self._passes[number]) is not run and not before.inside:
            self._replace(number, run)
            if not (run.goes_on and self._outlives(run)):
                self._end()

    def given(self, run: Pass) -> None:
        if (number := self._loaders.number(run.loader)) is None:
            return
        if self._passes[number] is run:
            self._aside.pop(number, None)
            self._unused[number] += 1
        else:
            known, read = self._aside.get(number, (run, 0))
            self._aside[number] = run, 1 + read * (known is run)

    def _replace(self, number: int, run: Pass, unused: int = 0) -> None:
        run.repeated = self._passes[number].repeated
        self._passes[number], self._unused[number] = run, unused
        self._over = False

    def _take_aside(self) -> None:
        """The script trains on what it has read beside a pass under way."""
        for number, (run, read) in self._aside.items():
            self._replace(number, run, read)
        self._aside.clear()

    def read(self, loader: DataLoader[Any], original: Callable[[DataLoader[Any]], Iterator[Any]]) -> Iterator[Any]:
        """What the script gets from a loader that it begins to read."""
        if self._split == 1 or (number := self._loaders.number(loader)) is None:
            return original(loader)
        self._begun[number] += 1
        return every_nth(loader, original, self._begun[number] - 1, self._rank, self._split)

    def forward(self, trains: bool, inputs: Any) -> None:
        """The model is called; whether a step may follow it."""
        if not trains:
            if not self._over and any(not each.inside for each in self._passes.values()):
                self._end()
            return
        self._samples += rows(inputs)
        self.begin()

    def begin(self) -> None:
        """The model is about to compute what a step may follow."""
        self._take_aside()
        if not self.data.open:
            self.data.begin(*self._plan())

    def step(self) -> None:
        samples, self._samples = self._samples, 0
        self._stepped_samples = samples
        self._take_aside()
        if not self.data.open:
            self.data.begin(None)
        self.data.step(samples)

    def stepped(self) -> None:
        if self._learns:
            self._learn_parts()
        for number, each in self._passes.items():
            each.step()
            self._unused[number] = max(0, self._unused[number] - self._used())
        self.end_if_over()

    def _learn_parts(self) -> None:
        """Who reads all mini-batches of a step before its first one shows with the second step how many these are."""
        self._learns = False
        for number, each in self._passes.items():
            if not each.over and (read := each.batches - each.settled) > self._parts:
                self._learn_first(read)
                self._unused[number] = max(0, self._unused[number] - (self._first - self._parts))  # of the first step
                self._parts = read

    def _learn_first(self, read: int) -> None:
        """A script that steps with its mini-batches 0, 2, 4, ... has less in the first step than in the second."""
        size, rest = divmod(self._stepped_samples, read)
        fewer = 0 < self.data.first_samples < self._stepped_samples
        if fewer and not rest and not self.data.first_samples % size:
            self._first, self._size = self.data.first_samples // size, size
        else:
            self._first = read

    def _used(self) -> int:
        """Mini-batches of the step that was made."""
        return min(self._parts, -(-self._stepped_samples // self._size)) if self._size else self._parts

    def end_if_over(self) -> None:
        """The script has made a step, or has come to the end of a pass: no further step may follow from it."""
        over = [each for number, each in self._passes.items() if self._is_over(each) and not self._unused[number]]
        self._over |= bool(over)
        if not all(map(self._outlives, over)):
            self._end()

    @property
    def is_last(self) -> bool:
        """Whether no mini-batch comes after those of the step under way."""
        over = (each for number, each in self._passes.items() if self._unused[number] <= self._parts)
        return any(self._is_over(each) and not self._outlives(each) for each in over)

    def is_open(self, left: bool) -> bool:
        """Whether an epoch is under way; a script that has `left` its loop, or drops what it reads, has ended it."""
        if left or (self._passes and all(each.left for each in self._passes.values())):
            self._end()
        return self.data.open

    def leave(self) -> None:
        """The script has left its loop over data that one rank hands on; it may do other things before the next one."""
        if self.data.open:
            self._end()

    def leave_loop(self) -> None:
        """The script has left its loop; where the end of a pass does not say so, its epoch is over now."""
        if self._over and any(map(self._outlives, self._passes.values())):
            self.leave()

    def _end(self) -> None:
        """An epoch is over; of the first one the warm-up step may have had all mini-batches of this rank."""
        self.before_end()
        self._over = False
        if self.data.first:
            self.data.pass_epoch()
        self.data.end()

    def _is_over(self, run: Pass) -> bool:
        """A loop that counts its mini-batches does not ask for one more than there are; what is repeated goes on."""
        if run.repeated:
            return False
        return run.over or (run.counted and self._split == 1 and run.batches == length_of(run.loader))

    def _plan(self) -> tuple[int | None, int]:
        """Steps of the shortest pass under way, and how many of them are made."""
        width = self._parts * self._split
        if self._split > 1 and self.data.first:  # what all have read before they split the rest
            return None, 0
        runs = [each for each in self._passes.values() if not each.over]
        more = self._size > 0  # a first step of its own
        early = self._first if more else 0
        lengths = [(length, each.steps) for each in runs if (length := length_of(each.loader)) is not None]
        known = [(more - (early - length) // width, steps) for length, steps in lengths]
        return min(known, key=lambda steps: steps[0] - steps[1], default=(None, 0))


def promise_of(run: Pass | None, split: int, handed: bool, some_only: bool) -> str:
    """What is said of data that are read in so many parts, by a loader or none, or `handed` on by one rank."""
    if handed or some_only:
        return HANDED if handed else SOME_READ
    if run is None:
        return DRAWN
    return AS_TORCHRUN if split == 1 else EVERY_NTH.format(split)


def rows(inputs: Any) -> int:
    """Samples of a mini-batch that a model is given: the first dimension of its first tensor; 0 if there is none.

    >>> import torch
    >>> rows(({"x": torch.zeros(3, 2)}, torch.zeros(4))), rows(([1, None],))
    (3, 0)
    """
    if isinstance(inputs, Tensor):
        return inputs.shape[0] if inputs.dim() else 0
    parts: Iterable[Any] = inputs.values() if isinstance(inputs, dict) else inputs
    if not isinstance(inputs, dict | list | tuple):
        return 0
    return next(filter(None, map(rows, parts)), 0)
