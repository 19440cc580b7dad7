"""What goes wrong, when and to whom, from a seed."""

import random
from dataclasses import dataclass

POLICIES = ("bsp", "asp", "local:8", "selsync:0.05", "balanced", "ssp:2")
KINDS = ("kill", "stop", "leave", "join", "switch", "save", "coordinator")


@dataclass(frozen=True)
class Fault:
    """At this share of the job's samples; the rank is the subject, if there is one, and the policy what is switched to.

    A rank that is gone, or the last that is left, is spared; one that is there does not join. A fault of the
    coordinator has no subject.
    """

    at: float
    kind: str
    rank: int
    policy: str


@dataclass(frozen=True)
class FaultScript:
    """A job and its faults, in order."""

    seed: int
    policy: str
    workers: int
    faults: tuple[Fault, ...]


def script_of(seed: int, kinds: tuple[str, ...] = KINDS) -> FaultScript:
    """The script of a seed."""
    chance = random.Random(seed)
    policy, workers = POLICIES[seed % len(POLICIES)], chance.randint(2, 4)
    times = sorted(chance.choice((chance.uniform(0.02, 0.9), 0.5)) for _ in range(chance.randint(2, 5)))
    made = (Fault(at, chance.choice(kinds), chance.randrange(workers), chance.choice(POLICIES)) for at in times)
    return FaultScript(seed, policy, workers, tuple(made))


def sound(fault: Fault, there: set[int]) -> bool:
    """Whether a fault can be played on the ranks that are there."""
    if fault.kind in ("kill", "stop", "leave"):
        return fault.rank in there and len(there) > 1
    return fault.kind != "join" or fault.rank not in there
