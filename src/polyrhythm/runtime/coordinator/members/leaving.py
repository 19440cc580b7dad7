"""Workers that are to leave where all make their steps together: they do so when nobody is in an exchange with them."""

from polyrhythm.runtime.coordinator.job import Job
from polyrhythm.runtime.wire.protocol import Over


def let_go(job: Job) -> bool:
    """Tell those who are to leave that they may, now that all stand; whether any has yet to go."""
    members = [job.members[worker] for worker in job.present]
    for worker, member in zip(job.present, members, strict=True):
        if member.leaving == "asks":
            member.leaving = "may"
            job.effects.send(worker, Over(job.epoch))
    return any(member.leaving for member in members)
