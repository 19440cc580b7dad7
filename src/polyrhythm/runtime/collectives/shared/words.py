"""Words in memory that members share, by which they tell each other how far they are, and how they wait for it.

Who waits spins for a short time and then sleeps until a byte comes over a Unix socket, whose end is also the end of all
waiting.
"""

import select
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives.shared.kinds import describe
from polyrhythm.runtime.wire.event_loop import Spinner
from polyrhythm.runtime.wire.shared_memory import fence

PUBLISHED: Final = 0
"""Word of a member: windows that it has shown."""
REDUCED: Final = 1
"""Word of a member: windows of which it has added up its part."""
CONSUMED: Final = 2
"""Word of a member: windows of which it needs nothing more."""
AWAITED: Final = 3
"""Word of a member: for which word of whose it sleeps, see `signal_for`; 0 while it spins."""
ADDRESS: Final = 4
"""Word of a member: where in its own memory its vector is."""
CALLS: Final = 5
"""First of the words, one for each slot, that say what is done there, see `call_of`."""
LENT: Final = 8
"""Word of a member: which of its vectors it lends, see `Lender`; 0 for none."""
INODE: Final = 9
DEVICE: Final = 10
"""Words of a member: by which others know the memory that it lends."""
LIVE: Final = 11
"""Word of a member: numbers of the vectors that it has lent and that are still there, as bits."""
PROCESS: Final = 12
"""Word of a member: its process."""
OPENED: Final = 13
"""Word of a member: whether it could open what the others lend."""
MISTAKEN: Final = 14
"""Word of a member: whether it has found that the members do not all do the same, and in time."""
SLOTS: Final = 3
"""Windows of a buffer. Who is ahead shows so many before it waits for the others to take them."""

WORDS: Final = 16
"""Of a member: two cache lines."""
GONE: Final = "a member is gone"
ALL: Final = -1


class SharedWords:
    """One member's view of all members' words.

    Args:
        memory: of `WORDS` for each member.
        rank: of this member.
        sockets: connections to the others, by rank.
        timeout_s: how long one waits for another at most.
    """

    def __init__(self, memory: memoryview, rank: int, sockets: Mapping[int, socket.socket], timeout_s: float) -> None:
        words = memory.cast("Q")
        self.own = words[WORDS * rank : WORDS * (rank + 1)]
        self.columns = [words[word::WORDS] for word in range(WORDS)]
        self._rank, self._sockets, self._timeout_s = rank, sockets, timeout_s
        self._spinner, self._bells, self._gone = Spinner(), select.poll(), set[int]()
        self._callers = {connection.fileno(): other for other, connection in sockets.items()}
        for connection in sockets.values():
            self._bells.register(connection, select.POLLIN)

    def tell(self, word: int, number: int) -> None:
        """Set this member's word, and wake up who sleeps until it is so."""
        fence()
        self.own[word] = number
        fence()
        for rank, signal in enumerate(self.columns[AWAITED]):
            if signal and rank != self._rank and self._answers(signal, word):
                with suppress(OSError):  # if it is gone, whoever needs it hears of that
                    self._sockets[rank].send(b"\0")

    def wait(self, word: int, number: int, rank: int = ALL) -> None:
        """Until that word of the member, or of all, has reached a number.

        Raises:
            OSError: if one that has not is gone, or does not come in time.
        """
        if not self._reached(word, number, rank) and not self._spinner.look(partial(self._reached, word, number, rank)):
            self._sleep(word, number, rank)
        fence()

    def check(self, call: int, slot: int, ranks: Sequence[int]) -> None:
        """That all do the same."""
        column = self.columns[CALLS + slot]
        for rank in ranks:
            if column[rank] != call:
                raise UsageError(
                    f"a {describe(call)} here, a {describe(column[rank])} there; all members exchange the same tensors "
                    "in the same order"
                )

    def note_mistake(self) -> None:
        self.own[MISTAKEN] = 1
        fence()

    @property
    def mistaken(self) -> bool:
        return any(self.columns[MISTAKEN])

    def _answers(self, signal: int, word: int) -> bool:
        """Whether what is awaited is there, now that this member's word has changed."""
        number, rank, awaited = signal >> 24, (signal >> 8 & 0xFFFF) - 1, (signal & 0xFF) - 1
        return awaited == word and rank in (ALL, self._rank) and self._reached(word, number, rank)

    def _reached(self, word: int, number: int, rank: int) -> bool:
        column = self.columns[word]
        return (min(column) if rank == ALL else column[rank]) >= number

    def _sleep(self, word: int, number: int, rank: int) -> None:
        self.own[AWAITED] = signal_for(word, number, rank)
        fence()
        while not self._reached(word, number, rank):
            if any(self.columns[word][gone] < number for gone in self._gone if rank in (ALL, gone)):
                raise ConnectionResetError(GONE)
            if not (rung := self._bells.poll(1000 * self._timeout_s)):
                raise TimeoutError("timed out")
            for descriptor, _ in rung:
                if not is_there(self._sockets[self._callers[descriptor]]):
                    self._gone.add(self._callers[descriptor])
                    self._bells.unregister(descriptor)
        self.own[AWAITED] = 0


def signal_for(word: int, number: int, rank: int) -> int:
    """How one that sleeps says what for; never 0."""
    return number << 24 | (rank + 1) << 8 | (word + 1)


def is_there(connection: socket.socket) -> bool:
    """Whether a member whose connection has something to say still stands."""
    try:
        return bool(connection.recv(64))
    except OSError:
        return False
