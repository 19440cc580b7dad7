"""Parameter-server mode, a worker's side: it pushes them, and the servers make the steps.

Also what it has in common with workers that step on replicas: the coordinator grants every step.
"""

from collections import deque
from typing import ClassVar

from polyrhythm.core import Settings
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import Cancelled, Go, Over, Pushed, Skipped, ToWorker
from polyrhythm.runtime.worker.context import DrawnBatch, WorkerContext


class Granted:
    """Every step needs a `Go`, which also grants what the worker may draw."""

    together: ClassVar[bool] = False
    on_servers: ClassVar[bool] = False

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._go: Go | None = None
        self._sample_ranges: deque[SampleRange] = deque()

    def draw(self) -> DrawnBatch | None:
        if not self._sample_ranges:
            return None
        sample_range = self._sample_ranges.popleft()
        return DrawnBatch((sample_range,), sample_range.start, 1, largest=sample_range.stop - sample_range.start)

    def follow(self, message: ToWorker) -> None:
        match message:
            case Go():
                if message.settings is not None:
                    self._context.steering.settings = Settings(**message.settings)  # type: ignore[arg-type]
                self._start_step(message)
                self._sample_ranges.extend(message.sample_ranges)
                self._go, self._context.may_step = message, True
            case Cancelled(number=number) if self._go is not None and self._go.number == number:
                self._go = None
            case Over():
                self._context.over = True

    def skip_step(self, samples: int) -> None:
        """Say so, and wait for the next `Go`; of a cancelled step the coordinator knows."""
        if self._go is not None:
            self._context.client.send(Skipped(self._go.number, samples))
            self._go = None
            self._context.wait()

    def _start_step(self, go: Go) -> None:
        pass


class ParameterServerMode(Granted):
    """Every step starts from the servers' parameters and ends in a push.

    Args:
        context: the worker's.
        swaps: whether the parameters of the next step come while the gradients of this one go. They are without them,
            and the coordinator is told which version they are.
    """

    on_servers: ClassVar[bool] = True

    def __init__(self, context: WorkerContext, swaps: bool = False) -> None:
        super().__init__(context)
        self._swaps = swaps
        self._swapped: int | None = None
        self._pulled_s = 0.0

    def before_step(self, samples: int) -> None:
        """Send the gradients, unless the step was cancelled meanwhile, and keep the script's optimizer from them."""
        self._push(samples)
        self._context.replica.hide_gradients()

    def after_step(self, samples: int) -> None:
        self._context.wait()

    def end_epoch(self, version: int) -> None:
        context = self._context
        self._swapped = None
        if version > context.version:
            context.client.pull(version)
            context.version = version

    def _push(self, samples: int) -> None:
        context = self._context
        while self._go is not None and (message := context.client.poll()) is not None:
            context.follow(message)
        go, self._go = self._go, None
        if go is None:  # cancelled; the Go after it waits until the step is over
            context.void = True
            return
        start = context.clock()
        if self._swaps:
            self._swapped = context.client.swap(go.number)
        else:
            context.client.push(go.number)
        transfer_s = self._pulled_s + context.clock() - start
        settings, read = context.replica.settings(), context.version if self._swaps else None
        context.client.send(
            Pushed(go.number, samples, context.computed_s, transfer_s, context.loss, settings=settings, read=read)
        )

    def _start_step(self, go: Go) -> None:
        context = self._context
        start = context.clock()
        if self._swapped is not None:
            context.client.take_swapped()
            context.version, self._swapped = self._swapped, None
        elif go.version > context.version:
            context.client.pull(go.version)
            context.version = go.version
        self._pulled_s = context.clock() - start
        context.tally.transferred_s += self._pulled_s
