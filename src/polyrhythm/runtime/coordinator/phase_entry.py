"""The way into a phase: its members form a group, agree on a state and move it, and nobody steps before all have.

Every member answers, with `Entered` or `CollectiveFailed`. Once one is lost or has failed, the others are let go, and
another phase opens when all of them have answered, too: then they stand, and none is still on the way into this one.
"""

from collections.abc import Iterable

ATTEMPTS = 3
"""How often the same members try to form a group. A loss is no attempt, as there are fewer members each time."""


class PhaseEntry:
    """Who is on the way into one phase.

    Args:
        members: who has to answer.
        source: whose state goes to the servers, if it does.
        together: whether the members need each other afterwards, too.
        goes_back: whether the job goes back to a kept state with this phase.

    Attributes:
        awaited: members that have not answered yet.
        source: whose state is still on its way to the servers, if one is.
        inside: live members that have entered, and so have the state on which all agree.
        lost: members that are gone.
        trouble: what went wrong first; empty if nothing has.
        refused: whether a member could have entered, and its script cannot follow the policy.
    """

    def __init__(
        self, members: Iterable[int], source: int | None = None, together: bool = True, goes_back: bool = False
    ) -> None:
        self.goes_back = goes_back
        self.inside: set[int] = set()
        self.lost: set[int] = set()
        self.trouble, self.refused = "", False
        self.source = source
        self.awaited, self._together = set(members), together
        self._failed: set[int] = set()

    @property
    def answered(self) -> bool:
        return not self.awaited

    @property
    def succeeded(self) -> bool:
        """Whether the phase can begin, once all have answered."""
        return not (self._failed or self.source is not None or (self.lost and self._together))

    def last_words(self, present: tuple[int, ...]) -> str:
        """Why the job ends after the last attempt."""
        return (
            f"the workers {present} could not form a group in {ATTEMPTS} attempts; see that they reach each other's "
            f"addresses ({self.trouble})"
        )

    def entered(self, worker: int) -> None:
        if worker in self.awaited:
            self.awaited.remove(worker)
            self.inside.add(worker)
            self.source = None if worker == self.source else self.source

    def fail(self, worker: int, reason: str, refused: bool = False) -> bool:
        """A member could not enter, or has refused it; whether this is the first that went wrong."""
        if worker not in self.awaited:
            return False
        self.refused |= refused
        self.awaited.remove(worker)
        self._failed.add(worker)
        return self._note(f"rank {worker}: {reason}")

    def knows(self, reason: str) -> bool:
        """Whether this is no news: all say what one has found, or what they were let go for."""
        return bool(self.trouble) and (self.trouble in reason or reason in self.trouble)

    def lose(self, worker: int) -> bool:
        """A worker is gone; whether this is the first that went wrong."""
        if worker not in self.awaited | self._failed | self.inside:
            return False
        for those in (self.awaited, self._failed, self.inside):
            those.discard(worker)
        self.lost.add(worker)
        return self._note(f"rank {worker} is gone")

    def _note(self, trouble: str) -> bool:
        first = not self.trouble
        self.trouble = self.trouble or trouble
        return first
