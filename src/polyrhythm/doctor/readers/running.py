"""Evidence from a job under `polyrhythm run` while it runs: its coordinator is asked how far everybody is, and again.

What a worker did between two looks is told as the mean of its steps in between. So a slow rank shows as ever, and a
single late step only as far as it lengthens that mean.
"""

import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from polyrhythm.doctor.evidence import Evidence
from polyrhythm.doctor.readers.own_traces import evidence_of_table
from polyrhythm.errors import TraceError, UnreachableError
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.launch.control_client import Controller
from polyrhythm.runtime.wire.control_protocol import AskStatus, Status
from polyrhythm.runtime.wire.protocol import Address
from polyrhythm.telemetry.stragglers import Lateness

PERIOD_S = 0.2
"""Time between two looks."""

START_S = 30.0
"""How long to wait for the first steps of a job that has just been started."""


class LiveStep(NamedTuple):
    """The mean step of a worker between two looks: when, computing, transfer, wait, samples."""

    start_s: float
    compute_s: float
    transfer_s: float
    wait_s: float
    samples: float


def watch_job(address: Address, seconds: float) -> Evidence:
    """Look at a running job for so long from its first steps on, or to its end.

    Raises:
        UnreachableError: if it does not answer.
    """
    with Controller(address) as controller:
        looks = [controller.ask(AskStatus())]
        until_s = time.monotonic() + START_S
        while not (looks[-1].ended or has_begun(looks[-1])) and time.monotonic() < until_s:
            time.sleep(PERIOD_S)
            looks = [controller.ask(AskStatus())]
        until_s = time.monotonic() + seconds
        # A job that has ended says so once and is gone.
        with suppress(UnreachableError):
            while not looks[-1].ended and time.monotonic() < until_s:
                time.sleep(PERIOD_S)
                looks.append(controller.ask(AskStatus()))
    return evidence_of_looks(address.job, looks)


def has_begun(status: Status) -> bool:
    return len(status.members) > 1 and all(steps(status, rank) for rank in status.members)


def evidence_of_looks(job: str, looks: Sequence[Status]) -> Evidence:
    """The looks since the latest change of the policy or of the members."""
    latest = looks[-1]
    same = [look for look in looks if (look.policy, look.phase, look.members) == about(latest)]
    table = [row for before, after in grown(same) if (row := between(before, after)) is not None]
    ranks = sorted(latest.members)
    if len(ranks) < 2:
        raise TraceError(f"job {job} has {len(ranks)} workers, and it takes 2 to compare; wait until all have joined")
    if not table:
        raise TraceError(f"job {job}: not all of its workers made steps meanwhile; look for longer, with --seconds")
    steps = np.array([[row[rank] for row in table] for rank in ranks])
    policy, each = parse_policy(latest.policy), steps[:, :, 4]
    made = sum(latest.arrivals[rank].steps - same[0].arrivals[rank].steps for rank in ranks if rank in same[0].arrivals)
    return evidence_of_table(
        f"job {job}, {len(same)} looks at it, under {latest.policy}",
        ranks,
        steps[:, :, :4],
        policy.traits.steady,
        latest.policy,
        batch_size=batch_of(same[0], latest),
        epoch_samples=latest.dataset_samples or None,
        hosts=hosts_of(latest, ranks),
        samples=each if policy.traits.steady and policy.traits.shares and (each > 0).all() else None,
        notes=(f"a step here is the mean of those between two looks; {made} were made by all ranks together",),
    )


def about(status: Status) -> tuple[str, int, tuple[int, ...]]:
    return status.policy, status.phase, status.members


def grown(looks: Sequence[Status]) -> list[tuple[Status, Status]]:
    """Neighbours between which every member made a step; looks in between are skipped."""
    kept = list(looks[:1])
    for look in looks[1:]:
        if all(steps(look, rank) > steps(kept[-1], rank) > 0 for rank in look.members):
            kept.append(look)
        elif any(not steps(kept[-1], rank) for rank in look.members):
            kept[-1] = look
    return list(pairwise(kept))


def steps(status: Status, rank: int) -> int:
    return status.arrivals[rank].steps if rank in status.arrivals else 0


def between(before: Status, after: Status) -> dict[int, LiveStep] | None:
    """Mean steps by rank; None if one of them has started anew."""
    found, made = {}, samples_between(before, after)
    for rank in after.members:
        early, late = before.arrivals[rank], after.arrivals[rank]
        count = late.steps - early.steps
        means = [(total(late, name) - total(early, name)) / count for name in ("compute_s", "transfer_s", "wait_s")]
        if min(means) < -1e-9:
            return None
        compute_s, transfer_s, wait_s = (max(0.0, mean) for mean in means)
        found[rank] = LiveStep(before.time_s, compute_s, transfer_s, wait_s, made.get(rank, 0) / count)
    return found


def samples_between(first: Status, last: Status) -> dict[int, int]:
    """What each rank has processed between two looks."""
    before = {worker.rank: worker.samples for worker in first.workers}
    return {worker.rank: worker.samples - before.get(worker.rank, worker.samples) for worker in last.workers}


def total(lateness: Lateness, name: str) -> float:
    seconds: float = getattr(lateness, name)
    return seconds * lateness.steps


def batch_of(first: Status, last: Status) -> int | None:
    """Samples of a step of one rank, mean."""
    made = sum(steps(last, rank) - steps(first, rank) for rank in last.members)
    return round(sum(samples_between(first, last).values()) / made) or None if made else None


def hosts_of(status: Status, ranks: Sequence[int]) -> tuple[str, ...]:
    """Of each rank; that of the coordinator has no name."""
    hosts = {worker.rank: worker.host for worker in status.workers}
    found = tuple(hosts.get(rank, "") for rank in ranks)
    return tuple(host or "the coordinator's host" for host in found) if any(found) else ()
