"""How many bytes of tensors each worker sends and receives, from what its policy is told and decides.

Workers that exchange through servers send a contribution a step, and read the model if it has changed since they last
did. Those that exchange among themselves do it on a ring: of n members each sends, and receives, 2(n-1)/n models in an
exchange. Replicas that servers sum up are one message from each contributor and one to each member. On one host the
same numbers lie in shared memory.
"""

from collections import defaultdict
from dataclasses import dataclass, field

from polyrhythm.core import Decisions, Event, Joined, Left, Proceed, Report, Sync


@dataclass(slots=True)
class LinkBytes:
    """Counts by worker.

    Attributes:
        sent: bytes by rank.
        received: bytes by rank.

    Example:
        >>> links = LinkBytes()
        >>> links.begin_phase(synchronous=True, message_bytes=100, push_bytes=100.0, star=False)
        >>> links.record(Joined((0, 1), 0.0), (Sync((0, 1)),))
        >>> links.sent[1], links.received[0]
        (100.0, 100.0)
    """

    sent: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    received: defaultdict[int, float] = field(default_factory=lambda: defaultdict(float))
    _live: set[int] = field(default_factory=set)
    _read: dict[int, int] = field(default_factory=dict)
    _synchronous: bool = False
    _star: bool = False
    _message_bytes: int = 0
    _push_bytes: float = 0.0
    _updates: int = 0

    def begin_phase(self, synchronous: bool, message_bytes: int, push_bytes: float, star: bool) -> None:
        self._synchronous, self._star = synchronous, star
        self._message_bytes, self._push_bytes = message_bytes, push_bytes
        self._live.clear()
        self._read.clear()

    def record(self, event: Event, decisions: Decisions) -> None:
        if isinstance(event, Report):
            if not self._synchronous:
                self.sent[event.worker] += self._push_bytes
        elif isinstance(event, Joined):
            self._live.update(event.workers)
        elif isinstance(event, Left):
            self._live.discard(event.worker)
        for decision in decisions:
            if type(decision) is Proceed:
                self._proceed(decision.workers)
            elif type(decision) is Sync:
                self._sync(decision)

    def _proceed(self, workers: tuple[int, ...]) -> None:
        if self._synchronous:
            return
        for worker in workers:
            if self._read.get(worker) != self._updates:
                self._read[worker] = self._updates
                self.received[worker] += self._message_bytes

    def _sync(self, sync: Sync) -> None:
        if not self._synchronous:
            self._updates += 1
            return
        part = 1 / sync.fragment[1] if sync.fragment else 1.0
        compressed = self._push_bytes != self._message_bytes
        if self._star and sync.what != "gradients" and not compressed:
            self._add(self.sent, {*sync.workers}, part * self._message_bytes)
            self._add(self.received, self._live, part * self._message_bytes)
        elif self._live:
            # What is compressed is handed round whole, to each of the others.
            members = len(self._live)
            rounds = (
                (members - 1) * self._push_bytes if compressed else 2 * (members - 1) / members * self._message_bytes
            )
            self._add(self.sent, self._live, part * rounds)
            self._add(self.received, self._live, part * rounds)

    @staticmethod
    def _add(to: defaultdict[int, float], workers: set[int], amount: float) -> None:
        for worker in workers:
            to[worker] += amount
