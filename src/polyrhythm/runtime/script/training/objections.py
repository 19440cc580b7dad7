"""What a script has done that stands against policies other than the one in force.

A policy is held against it when somebody asks for it, and once more on the way into its phase, as the script goes on
between the two. What the script is yet to do is refused where it does it.
"""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

from polyrhythm.core import Policy
from polyrhythm.core.placement import policies_of, runtime_placement
from polyrhythm.errors import RefusalError
from polyrhythm.runtime.script.notices import refuse, script_line

Against: TypeAlias = Literal["apart", "unequal", "aggregates", "reduces"]
"""Policies whose workers make steps of their own, those under which parameters differ after a step, those that decide
about a step whether all take its mean gradient, or those under which all always do.
"""

APART = "workers that make steps of their own"

LATE = "the switch to {} came before the script had done this, and steps that workers have made of their own stay made"


class Objections:
    """Of one script.

    Args:
        later: whether workers make steps of their own in a later part of the policy.
        switched: the policy in force, if the job has not begun with it.

    Example:
        >>> from polyrhythm.policies import parse_policy
        >>> objections = Objections(lambda: False, lambda: "")
        >>> objections.note("apart", "it steps by a metric", "train.py:3")
        >>> objections.to(parse_policy("switch:bsp@0.5,asp")), objections.to(parse_policy("local:4"))
        ('train.py:3: it steps by a metric', '')
    """

    def __init__(self, later: Callable[[], bool], switched: Callable[[], str]) -> None:
        self._later, self._switched = later, switched
        self._found: dict[Against, str] = {}

    def begin_again(self) -> None:
        """A training is over: the script is yet to show what it does in the next one."""
        self._found.clear()

    def knows(self, against: Against) -> bool:
        return against in self._found

    def note(self, against: Against, problem: str, place: str = "") -> None:
        """This problem of the script's line that is running, or of a `place`, stands against such policies, if any."""
        if problem and against not in self._found:
            self._found[against] = f"{place or script_line()}: {problem}"

    def refusal(self, problem: str, place: str = "") -> RefusalError:
        """The error of what the policy in force cannot follow; it may have come before anybody could know."""
        if policy := self._switched():
            problem = f"{problem} ({LATE.format(policy)})"
        return refuse(problem, place)

    def foresee(self, problem: Callable[[str], str]) -> None:
        """Inside its loop the script has done what workers that make steps of their own cannot follow.

        Args:
            problem: what it is, told who cannot.

        Raises:
            RefusalError: if there are such workers in a later part of the policy: half a job is lost if it is refused
                only then.
        """
        if self._later():
            raise refuse(problem(f"{APART}, as in a later part of the policy,"))
        self.note("apart", problem(APART))

    def to(self, policy: Policy[Any]) -> str:
        """What stands against a policy, or a part of it; empty if nothing does."""
        found = {**self._found}
        if not found:
            return ""
        parts = policies_of(policy)
        return next((line for against, line in found.items() if any(concerns(against, part) for part in parts)), "")


def concerns(against: Against, policy: Policy[Any]) -> bool:
    """Whether a policy is one of these.

    >>> from polyrhythm.policies import parse_policy
    >>> kinds = ("apart", "unequal", "reduces")
    >>> [[concerns(kind, parse_policy(spec)) for kind in kinds] for spec in ("bsp", "local:4", "asp")]
    [[False, False, True], [False, True, False], [True, True, False]]
    """
    if against == "aggregates":
        return getattr(policy, "aggregate", "") == "gradients"
    apart, replicas = runtime_placement(policy) != "every_rank", "replicas" in policy.traits.exchanges
    if against == "reduces":
        return not (apart or replicas)
    return apart or (against == "unequal" and replicas)
