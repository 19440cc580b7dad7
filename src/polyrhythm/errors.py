"""Every error that Polyrhythm raises, in one tree with two branches.

- `UsageError`: what the user did wrong, a `ValueError`. The message names the argument, the value and the remedy.
- `ClusterError`: what the cluster did, a `RuntimeError`, which nobody who catches a `ValueError` swallows.

Both are one line, and both are `PolyrhythmError`s. Broken invariants of Polyrhythm itself are assertions and are never
caught.

    try:
        train()
    except polyrhythm.errors.ClusterError:
        start_again_from_the_checkpoint()
"""

import sys
from collections.abc import Iterable
from difflib import get_close_matches
from itertools import count
from pathlib import Path
from signal import SIG_IGN, SIGINT, getsignal
from traceback import walk_tb
from typing import Any, ClassVar
from weakref import WeakSet

REFUSED = 2
"""Exit status of a process that has said what its user did wrong."""

BROKEN = 4
"""Exit status of a process of a job that ends because of its policy, which has broken its contract or cannot be read.

The coordinator says so, and the others are silent.
"""

LEAST_BEGUN = 3
"""Characters that are enough to tell which of the known names was meant."""

MOST_SHOWN = 300
"""Characters of a value that a message shows."""

USERS = "polyrhythm.policies.user."
"""Modules of the policy files that were loaded."""


class PolyrhythmError(Exception):
    """Anything that Polyrhythm raises on purpose; always one of its two kinds.

    Attributes:
        reason: what another process has said of it, without what this one adds; empty if none has.

    >>> issubclass(UsageError, PolyrhythmError) and issubclass(ClusterError, PolyrhythmError)
    True
    """

    reason = ""


class UsageError(PolyrhythmError, ValueError):
    """A mistake that the user can mend; the message says how.

    >>> from polyrhythm import parse_policy
    >>> try:
    ...     parse_policy("spp:3")
    ... except ValueError as error:
    ...     print(type(error).__name__, "did you mean ssp?" in str(error))
    SpecError True
    """


class SpecError(UsageError):
    """A policy spec that cannot be read, such as ``ssp:-1`` or an unknown name, or a parameter that makes no sense."""

    wrong: str = ""
    """What is wrong, where the line begins with the policy of which it is."""

    @classmethod
    def of(cls, policy: str, error: Exception) -> "SpecError":
        """The line about a policy, or the one about the policy in which that is an argument.

        >>> str(SpecError.of("policy 'local:0'", SpecError.of("policy local", SpecError("h must be above 0"))))
        "policy 'local:0': h must be above 0"
        """
        wrong = getattr(error, "wrong", "") or str(error)
        named = cls(f"{policy}: {wrong}")
        named.wrong = wrong
        return named


class PolicyError(UsageError):
    """A policy that breaks the contract, such as one that restarts a worker that is still running."""


class BrokenPolicyError(PolicyError):
    """The policy of a running job has broken its contract, and the job ends: its coordinator has said so on stderr."""


class TraceError(UsageError):
    """A trace that cannot be read, or that a policy does not reproduce."""


class ScenarioError(UsageError):
    """A scenario file or table with an unknown key or an impossible value."""


class DataError(UsageError):
    """A data set that is missing or does not have the expected columns."""


class RefusalError(UsageError):
    """A script does something that has no meaning under a policy, or that cannot be adapted for sure."""


class NotedRefusalError(RefusalError):
    """A refusal that leaves its line behind if it was raised and is gone: the script has caught it, unless we have.

    It is not kept for that, nor are the frames of its traceback and all that the script has in them.

    Attributes:
        alive: those that are there.
        first: number and line of the first of those that were caught.
    """

    alive: ClassVar["WeakSet[NotedRefusalError]"] = WeakSet()
    first: ClassVar[tuple[int, str] | None] = None
    _numbers = count()

    def __init__(self, line: str) -> None:
        super().__init__(line)
        self.number, self.overlooked = next(self._numbers), False
        self.alive.add(self)

    def note(self) -> None:
        """Leave the line behind, if this was raised and we have not caught it."""
        if self.__traceback__ is None or self.overlooked:
            return
        if self.first is None or self.number < self.first[0]:
            NotedRefusalError.first = self.number, str(self)

    __del__ = note


class ClusterError(PolyrhythmError, RuntimeError):
    """Something failed while the job ran, or never answered; the same command may succeed the next time.

    >>> issubclass(ServerLostError, RuntimeError), issubclass(ServerLostError, ValueError)
    (True, False)
    """


class UnreachableError(ClusterError):
    """Nobody answers at an address: the job is not running, or the network is cut."""


class ServerLostError(ClusterError):
    """A server has died or does not answer; the job cannot go on."""


class CoordinatorLostError(ServerLostError):
    """The coordinator has died, and another one takes its place: the worker stands until it has met that one."""


class GroupError(ClusterError):
    """A collective or the building of a group failed: a member died, hangs, or does something else."""


class FrameError(ClusterError):
    """Bytes that are no frame, or a frame that was not expected; the connection cannot be used any more."""


class JobError(ClusterError):
    """A job or one of its processes has failed, or goes on without this worker."""


class ReplicasDifferError(ClusterError):
    """Workers that make every step together no longer have the same parameters."""


class DivergedError(ClusterError):
    """A run whose loss or parameters are no longer finite."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """End of an error message that suggests the nearest known name and lists them all.

    >>> did_you_mean("spp", ["asp", "bsp", "ssp"])
    'did you mean ssp? Known: asp, bsp, ssp'
    >>> did_you_mean("zzz", ["asp", "bsp"])
    'known: asp, bsp'
    >>> did_you_mean("nproc", ["nnodes", "nproc-per-node"])
    'did you mean nproc-per-node? Known: nnodes, nproc-per-node'
    >>> did_you_mean("BSP", ["asp", "bsp"]), did_you_mean("adamw", ["Adam", "AdamW"]), did_you_mean("x", [])
    ('did you mean bsp? Known: asp, bsp', 'did you mean AdamW? Known: Adam, AdamW', 'none is known')
    """
    names = sorted(known)
    if not names:
        return "none is known"
    listing = ", ".join(names)
    written = {full.casefold(): full for full in names}
    begun = [full for full in names if len(name) >= LEAST_BEGUN and full.startswith(name)]
    # Of equally near names difflib prefers the alphabetically last, which is as good as any.
    alike = get_close_matches(name.casefold(), written, n=1)
    near = [written[each] for each in alike] or (begun if len(begun) == 1 else [])
    return f"did you mean {near[0]}? Known: {listing}" if near else f"known: {listing}"


def shown(value: Any) -> str:
    """A value of the user's, whatever it is, on one line that is not too long."""
    try:
        text = repr(value)
    except Exception:  # of a class of the user's own
        text = f"something of class {type(value).__name__}"
    line = " ".join(text.split()) if "\n" in text else text
    return line if len(line) <= MOST_SHOWN else f"{line[:MOST_SHOWN]}..."


class EndedError(KeyboardInterrupt):
    """A signal ends the command, as Ctrl-C does; see `polyrhythm.early_end`."""


def may_raise() -> tuple[type[BaseException], ...]:
    """In an except clause around code of the user's own, such as a policy: the exceptions that are that code's.

    This is any, as the process must not end for it without a word. Only a KeyboardInterrupt is passed on, for it is
    the user's Ctrl-C, unless that does not reach this process, as it does not reach a coordinator; or it is the end of
    a command by SIGTERM, which may reach one that Ctrl-C does not.
    """
    error = sys.exception()
    pressed = isinstance(error, KeyboardInterrupt) and getsignal(SIGINT) is not SIG_IGN
    return () if pressed or isinstance(error, EndedError) else (BaseException,)


def line_of(error: BaseException) -> str:
    """Where in the user's own code an exception came from, in the file that was entered first; empty if in none.

    >>> line_of(ValueError("that nobody has raised"))
    ''
    """
    lines = [
        (frame.f_code.co_filename, line)
        for frame, line in walk_tb(error.__traceback__)
        if is_users(frame.f_globals.get("__name__", "")) and frame.f_code.co_filename != "<string>"  # as of a dataclass
    ]
    own = [line for file, line in lines if file == lines[0][0]]
    return f" ({Path(lines[0][0]).name}:{own[-1]})" if own else ""


def is_users(module: str) -> bool:
    """Whether a module is neither ours nor Python's.

    >>> is_users("polyrhythm.core.driver"), is_users("polyrhythm.policies.user./home/me/mine.py"), is_users("json")
    (False, True, False)
    """
    package = module.partition(".")[0]
    ours = package == "polyrhythm" and not module.startswith(USERS)
    return not ours and package not in sys.stdlib_module_names
