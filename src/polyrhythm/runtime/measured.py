"""A phase in lockstep whose policy decides from what all members have measured in the same step."""

from dataclasses import dataclass, replace

from polyrhythm.core import Report
from polyrhythm.runtime.control import Measured, Record, Stepped, Token
from polyrhythm.runtime.lockstep import LockstepRun


@dataclass(slots=True)
class Question:
    """What a rank has measured in the step that it stands in, until it is answered."""

    step: int
    record: Record


class MeasuredRun(LockstepRun):
    """Answers the measurements of a step once all are there, so that every rank comes to the same decision.

    The answer is the token too: a stop is decided with it. If a rank is lost, nobody gets everyone's figures any more;
    whoever asks then makes its step alone and waits for a new phase.
    """

    def start(self) -> None:
        """Send the plan for what is left of the epoch."""
        self._questions: dict[int, Question] = {}
        self._records: dict[tuple[int, int], Record] = {}
        super().start()

    def measured(self, worker: int, message: Measured) -> None:
        """The gradients of a rank are there."""
        record = Record(message.grad_sq_norm, message.loss)
        self._questions[worker] = Question(message.step, record)
        self._records[worker, message.step] = record
        self._send_tokens()

    def _send_tokens(self) -> None:
        """Answer all who ask, if everyone does or one of them is lost."""
        asking = {worker: q for worker, q in self._questions.items() if worker not in self._lost}
        if self._lost:
            for worker, question in asking.items():
                self._job.office.send(worker, Token(question.step, stop=True))
            self._questions.clear()
        elif len(asking) == len(self._members):
            self._answer(asking)

    def _answer(self, asking: dict[int, Question]) -> None:
        assert self.plan is not None
        step = asking[self._members[0]].step
        assert all(question.step == step for question in asking.values()), f"ranks measure different steps: {asking}"
        stop = (self._stopping or step == self.last_step) and step < self.plan.steps - 1
        if stop:
            self._stop_at = step
        token = Token(step, stop, tuple(asking[worker].record for worker in self._members))
        for worker in self._members:
            self._job.office.send(worker, token)
        self._questions.clear()

    def _report(self, worker: int, clock: int, message: Stepped) -> Report:
        norm, loss = self._records.pop((worker, message.step))
        return replace(super()._report(worker, clock, message), grad_sq_norm=norm, loss=loss)

    def _show_policy(self) -> None:
        """Show the policy the steps as the ranks do: those of all members with one number, in their order."""
        while all(progress.unseen for _, progress in self._live()) and self._show_one_each():
            pass
