"""What is common to workers whose every step is granted by the coordinator."""

from collections import deque

from polyrhythm.core import Settings
from polyrhythm.core.workload import SampleRange
from polyrhythm.runtime.wire.protocol import Cancelled, Go, Over, Skipped, ToWorker
from polyrhythm.runtime.worker.context import WorkerContext


class Granted:
    """Every step needs a `Go`, which also grants what the worker may draw."""

    def __init__(self, context: WorkerContext) -> None:
        self._context = context
        self._go: Go | None = None
        self._sample_ranges: deque[SampleRange] = deque()

    def draw(self) -> tuple[SampleRange, ...] | None:
        """The next sample range that was granted."""
        return (self._sample_ranges.popleft(),) if self._sample_ranges else None

    def follow(self, message: ToWorker) -> None:
        """A step may start, is void, or there is none."""
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
        """Make ready for the step."""
