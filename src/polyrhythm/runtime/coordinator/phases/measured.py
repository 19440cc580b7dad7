"""A phase in synchronous mode whose policy decides from what all members have measured in the same step."""

from polyrhythm.core import Report
from polyrhythm.runtime.coordinator.phases.synchronous import SynchronousPhase
from polyrhythm.runtime.wire.protocol import CollectiveFailed, MeasuredStep, Stepped, ToCoordinator
from polyrhythm.runtime.wire.segments import MEASURED, unpacked


class MeasuredPhase(SynchronousPhase):
    """Follows ranks that tell each other what they have measured, and so come to the same decision by themselves.

    Whoever completes a step has everyone's records of it, and tells the coordinator. Of a step that only some complete,
    because a rank was lost while they told each other, the others make nothing.
    """

    def start(self) -> None:
        self._records: dict[int, tuple[MeasuredStep, ...]] = {}
        super().start()

    def refusal(self, worker: int, message: ToCoordinator) -> str:
        failed = isinstance(message, CollectiveFailed) and message.phase == self.number and message.records
        if isinstance(message, Stepped | CollectiveFailed) and (failed or isinstance(message, Stepped)):
            told = len(message.records) / MEASURED.size
            if told != len(self._members):
                return f"with the records of {told:g} members of {len(self._members)}"
        return super().refusal(worker, message)

    def stepped(self, worker: int, message: Stepped) -> None:
        self._keep(message.step, message.records)
        super().stepped(worker, message)

    def collective_failed(self, worker: int, message: CollectiveFailed) -> None:
        """A rank stands still because an exchange has failed; it may have completed a step before."""
        if message.records:
            self._keep(message.completed - 1, message.records)
        super().collective_failed(worker, message)

    def _keep(self, step: int, records: bytes) -> None:
        """All members tell the same of a step."""
        if step not in self._records:
            self._records[step] = unpacked(records)

    def _report(self, worker: int, clock: int, time_s: float, message: Stepped) -> Report:
        norm, loss = self._records[message.step][self._members.index(worker)]
        if worker == self._members[-1]:
            self._records.pop(message.step - 1, None)
        return super()._report(worker, clock, time_s, message)._replace(grad_sq_norm=norm, loss=loss)

    def _show_policy(self) -> None:
        """Show the policy the steps as the ranks do: those of all members with one number, in their order."""
        while all(progress.unseen for _, progress in self._live()) and self._show_one_each():
            pass
