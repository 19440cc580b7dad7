"""Which mini-batches make up an optimizer step, and which of them came to nothing."""

from typing import Protocol

from polyrhythm.errors import UsageError


class StepMaker(Protocol):
    """Who makes the steps; see `polyrhythm.runtime.worker.worker.Worker`."""

    def accumulate(self, last: bool) -> None:
        """A mini-batch is about to be computed on; whether the step comes behind it."""

    def skip_step(self, samples: int) -> None:
        """The script made no step with these samples."""


class Accumulation:
    """Follows what the script gets from the loader and what it does with it.

    A step belongs to all mini-batches since the step before. If the script asks for the next one although a step was
    due, that step came to nothing, as when a GradScaler finds infinities.
    """

    def __init__(self, steps: StepMaker) -> None:
        self.samples = 0
        self.due = False
        self._steps = steps

    def start(self) -> None:
        """An epoch starts; what a loop that was left early had got is the business of others now."""
        self.samples, self.due = 0, False

    def given(self, samples: int, last: bool) -> None:
        """The script gets a mini-batch; `last` if a step is due behind it. Call `end` first."""
        self.samples += samples
        self.due = last
        self._steps.accumulate(last)

    def end(self) -> None:
        """No further mini-batch belongs to the step that is due, if one is."""
        if self.due:
            self._steps.skip_step(self.take())

    def check(self) -> None:
        """Refuse a step that belongs to no mini-batch, or comes too early."""
        if not self.samples:
            raise UsageError("optimizer.step without a mini-batch: make one step for each batch of session.loader")
        if not self.due:
            raise UsageError("optimizer.step came too early; with accumulate, step when session.step_due is true")

    def take(self) -> int:
        """The step is made; its samples."""
        samples, self.samples, self.due = self.samples, 0, False
        return samples
