"""Every error that a user can cause, in one tree.

All are `ValueError`s: the message names the argument, the value that was given and the remedy. Broken invariants of
Polyrhythm itself are assertions and are never caught.
"""

from collections.abc import Iterable
from difflib import get_close_matches

BROKEN = 4
"""Exit status of a process of a job that ends because its policy has broken its contract; it is silent itself."""


class PolyrhythmError(ValueError):
    """A mistake that the user can mend; the message says how."""


class SpecError(PolyrhythmError):
    """A policy spec that cannot be read, such as ``ssp:-1`` or an unknown name."""


class PolicyError(PolyrhythmError):
    """A policy that breaks the contract, such as one that restarts a worker that is still running."""


class BrokenPolicyError(PolicyError):
    """The policy of a running job has broken its contract, and the job ends: its coordinator has said so on stderr."""


class TraceError(PolyrhythmError):
    """A trace that cannot be read, or that a policy does not reproduce."""


class ScenarioError(PolyrhythmError):
    """A scenario file or table with an unknown key or an impossible value."""


class DataError(PolyrhythmError):
    """A data set that is missing or does not have the expected columns."""


class DivergedError(PolyrhythmError):
    """A run whose loss or parameters are no longer finite."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of an error message that suggests the nearest known name and lists them all.

    >>> did_you_mean("spp", ["asp", "bsp", "ssp"])
    'did you mean ssp? Known: asp, bsp, ssp'
    >>> did_you_mean("zzz", ["asp", "bsp"])
    'known: asp, bsp'
    """
    names = sorted(known)
    listing = ", ".join(names)
    # Of equally near names difflib prefers the alphabetically last, which is as good as any.
    near = get_close_matches(name, names, n=1)
    return f"did you mean {near[0]}? Known: {listing}" if near else f"known: {listing}"
