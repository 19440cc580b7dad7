"""What goes wrong, when and to whom, from a seed."""

import random
from dataclasses import dataclass

POLICIES = ("bsp", "asp", "local:8", "selsync:0.05", "balanced", "ssp:2")
KINDS = ("kill", "stop", "cut", "slow", "leave", "join", "switch", "disk", "save", "coordinator")
FEWEST, MOST = 2, 6
CLOSE_S = 0.1
"""Within this time a fault follows one that it is to meet, such as a death that meets a switch."""


@dataclass(frozen=True)
class Fault:
    """At this share of the job's samples; the rank is the subject, if there is one, and the policy what is switched to.

    One that is `close_s` follows the fault before it by so many seconds, as soon as its share is reached. A rank that
    is gone, or the last that is left, is spared; one that is there does not join. A fault of the coordinator or of the
    disk has no subject.
    """

    at: float
    kind: str
    rank: int
    policy: str
    close_s: float = 0.0


@dataclass(frozen=True)
class FaultScript:
    """A job and its faults, in order."""

    seed: int
    policy: str
    workers: int
    faults: tuple[Fault, ...]


def script_of(seed: int, kinds: tuple[str, ...] = KINDS) -> FaultScript:
    """The script of a seed; half of all moments are the end of an epoch, and some faults follow another one closely."""
    chance = random.Random(seed)
    policy, workers = POLICIES[seed % len(POLICIES)], chance.randint(FEWEST, MOST)
    times = sorted(chance.choice((chance.uniform(0.02, 0.9), 0.5)) for _ in range(chance.randint(2, 6)))
    faults = list[Fault]()
    for at in times:
        subject = chance.choice(kinds), chance.randrange(workers), chance.choice(POLICIES)
        close = faults and chance.random() < 0.4
        made = Fault(faults[-1].at if close else at, *subject, chance.uniform(0.001, CLOSE_S) if close else 0.0)
        faults.append(made)
    return FaultScript(seed, policy, workers, tuple(faults))


def ends(fault: Fault) -> bool:
    """Whether its subject is gone afterwards."""
    return fault.kind in ("kill", "stop", "cut", "leave")


def sound(fault: Fault, there: set[int]) -> bool:
    """Whether a fault can be played on the ranks that are there."""
    if ends(fault):
        return fault.rank in there and len(there) > 1
    if fault.kind == "slow":
        return fault.rank in there
    return fault.kind != "join" or fault.rank not in there
