"""Who is asked about a policy before the job switches to it, and who waits for the answer."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from polyrhythm.core import Policy
from polyrhythm.core.placement import runtime_placement
from polyrhythm.errors import SpecError
from polyrhythm.policies import parse_loaded_policy, parse_policy
from polyrhythm.runtime.coordinator.members.member import Member

SwitchAnswer: TypeAlias = Callable[[str], None]
"""Hears why a policy is refused, or nothing if it is not."""


def nobody(refusal: str) -> None:
    """Whoever wants a policy and does not listen."""


def read_policy(spec: str, *, files: bool) -> Policy[Any]:
    """The policy that a running job is asked for.

    Args:
        spec: as somebody has sent it.
        files: whether a file or module may be run for it.

    Raises:
        UsageError: if it cannot be read, or run on real workers.
    """
    try:
        policy = parse_policy(spec) if files else parse_loaded_policy(spec)
    except RecursionError:
        raise SpecError(f"policy {spec[:40]!r}... is nested too deeply") from None
    runtime_placement(policy)
    return policy


def may_object(members: Iterable[Member]) -> bool:
    """Whether any of these runs an unmodified script, which may have done what a policy cannot follow."""
    return any(member.ready is not None and member.ready.script is not None for member in members)


class Proposal:
    """A policy that members are asked about before the job switches to it.

    Args:
        number: of the proposal, for answers.
        policy: what they are to run.
        members: who is asked.
        tell: told why the policy is refused, or nothing if it is not.
    """

    def __init__(self, number: int, policy: Policy[Any], members: Iterable[int], tell: SwitchAnswer) -> None:
        self.number, self.policy = number, policy
        self._awaited, self._tells = set(members), [tell]

    @property
    def answered(self) -> bool:
        return not self._awaited

    def awaits(self, worker: int) -> bool:
        """Whether this worker has not answered yet."""
        return worker in self._awaited

    def also(self, tell: SwitchAnswer) -> None:
        """Somebody else wants the same policy."""
        self._tells.append(tell)

    def answer(self, worker: int) -> None:
        """This worker can run the policy, or is gone."""
        self._awaited.discard(worker)

    def end(self, refusal: str = "") -> None:
        for tell in self._tells:
            tell(refusal)


class Proposals:
    """Those that members are asked about at the same time, in the order in which they were asked for."""

    def __init__(self) -> None:
        self._pending: list[Proposal] = []
        self._made = 0

    def __iter__(self) -> Iterator[Proposal]:
        return iter(tuple(self._pending))  # as an answer may end some

    def also(self, policy: Policy[Any], tell: SwitchAnswer) -> bool:
        """Whether the latest is of this policy; then whoever wants it hears of that one."""
        if not self._pending or self._pending[-1].policy != policy:
            return False
        self._pending[-1].also(tell)
        return True

    def add(self, policy: Policy[Any], members: Iterable[int], tell: SwitchAnswer) -> Proposal:
        """Arguments are as of `Proposal`."""
        self._made += 1
        self._pending.append(Proposal(self._made, policy, members, tell))
        return self._pending[-1]

    def numbered(self, number: int) -> Proposal | None:
        return next((each for each in self._pending if each.number == number), None)

    def drop(self, proposal: Proposal) -> None:
        """It is refused."""
        self._pending.remove(proposal)

    def take_answered(self) -> list[Proposal]:
        """The first of which no answer is awaited, and in front of it those before it; nothing if there is none."""
        count = next((count for count, each in enumerate(self._pending, start=1) if each.answered), 0)
        taken, self._pending = self._pending[:count], self._pending[count:]
        return taken
