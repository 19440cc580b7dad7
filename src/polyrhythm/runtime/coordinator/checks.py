"""What a worker cannot send as things stand: such a message changes nothing, and costs its sender the connection.

A message that only comes late, as of a step that was cancelled while it was under way, is none of these.
"""

from typing import Final

from polyrhythm.errors import FrameError
from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.coordinator.members.member import Member
from polyrhythm.runtime.coordinator.phase_entry import PhaseEntry
from polyrhythm.runtime.coordinator.phases.phase_kind import PhaseKind
from polyrhythm.runtime.wire.protocol import (
    OF_WORKER,
    AtEnd,
    CollectiveFailed,
    Diverged,
    LocalStepDone,
    Pushed,
    Ready,
    Skipped,
    Stepped,
    ToCoordinator,
)

GRANTED: Final = (Pushed, LocalStepDone, Skipped)
"""What ends a step that the coordinator has granted."""


def counts(
    worker: int, message: ToCoordinator, job: Job, mode: PhaseKind, members: tuple[int, ...], entering: bool
) -> bool:
    """Whether a message is to be followed: not if its step was cancelled while it was under way.

    Raises:
        FrameError: if it cannot be as things stand; arguments are as of `refusal`.
    """
    if isinstance(message, Pushed) and makes(worker, message, job):
        return True
    why = refusal(worker, message, job, mode, members, entering)
    if why:
        raise FrameError(f"rank {worker} sent {type(message).__name__} {why}")
    return not isinstance(message, GRANTED) or message.number == job.members[worker].step


def makes(worker: int, message: Pushed, job: Job) -> bool:
    """Whether it is of the step under way, as most are; there is nothing more to check."""
    member = job.members.get(worker) if message.read is None else None
    return member is not None and member.step == message.number


def check_upload(worker: int, version: int, job: Job, entry: PhaseEntry | None) -> None:
    """Only the source of a phase, whose members are on the way into it, may replace the servers' parameters.

    Raises:
        FrameError: if somebody else does.
    """
    if entry is None or worker != entry.source or version != job.version:
        raise FrameError(f"rank {worker} sent Upload of version {version}, which nobody has asked for")


def refusal(
    worker: int, message: ToCoordinator, job: Job, mode: PhaseKind, members: tuple[int, ...], entering: bool
) -> str:
    """Why this message of a worker cannot be; empty if it can.

    Args:
        worker: that has sent it.
        message: any.
        job: state of the job.
        mode: the phase under way.
        members: of this phase.
        entering: whether they are still on the way into it.
    """
    member = job.members.get(worker)
    if member is None:
        return "after it has left the job"
    if isinstance(message, Stepped):  # as most are, where all make their steps together
        return mode.refusal(worker, message)
    if isinstance(message, GRANTED):
        return wrong_step(message, member, job)
    if type(message) not in OF_WORKER:
        return "which is not for the coordinator"
    match message:
        case Ready(epoch=epoch) if member.ready is not None and member.ready.epoch >= epoch:
            return f"for epoch {epoch} a second time"
        case Diverged() if member.ready is None or job.epoch < 0:
            return "before it has made a step"
        case AtEnd(away=True):
            return ""
        case AtEnd(early=True) if member.ready is None:
            return "early, but has not begun an epoch"
        case AtEnd(early=True, phase=number) if number == mode.number and (entering or worker not in job.present):
            return f"early, but makes no steps in phase {number}"
        case CollectiveFailed(phase=number) if number == mode.number and worker not in members:
            return f"but is no member of phase {number}"
        case CollectiveFailed(phase=number, broken=True) if number == mode.number and entering and job.may_refuse:
            return ""
        case CollectiveFailed(phase=number) if number == mode.number and not (mode.on_workers or entering):
            return f"but nothing is exchanged in phase {number}"
    return mode.refusal(worker, message)


def wrong_step(message: Pushed | LocalStepDone | Skipped, member: Member, job: Job) -> str:
    """Why a worker cannot have made this step."""
    if message.number > member.granted:
        return f"for step {message.number}, which it was not given"
    if isinstance(message, Pushed) and message.read is not None and message.read > job.version:
        return f"with parameters of version {message.read}, but there are {job.version}"
    return ""
