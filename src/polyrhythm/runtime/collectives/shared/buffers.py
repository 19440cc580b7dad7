"""Sums and broadcasts of members that share memory: sooner than gloo's, which sends over TCP even to the same host.

All map one piece of memory, in which each has a buffer of a few windows, and show their vectors there, window by
window. Each member owns a part of a window: it adds up what all have of it, in the order in which gloo would, so that
the sum has the bits of gloo's, and all take the sums of the others. A short vector is added up by everyone, which saves
a wait. Long vectors that all members lend are added up where they are. Those of two members, and long broadcasts, are
read where they are otherwise, if that is not forbidden.
"""

import socket
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Final

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from polyrhythm.runtime.collectives.peer_sockets import PeerSockets
from polyrhythm.runtime.collectives.shared.kinds import BROADCAST, Kind, call_of, combine_all
from polyrhythm.runtime.collectives.shared.lent import Borrowed, Lender, take_back
from polyrhythm.runtime.collectives.shared.parts import OwnedPart, Window, piece_of, whole, windows
from polyrhythm.runtime.collectives.shared.peer_memory import open_peer_memory
from polyrhythm.runtime.collectives.shared.words import (
    ADDRESS,
    CALLS,
    CONSUMED,
    GONE,
    OPENED,
    PUBLISHED,
    REDUCED,
    SLOTS,
    WORDS,
    SharedWords,
)
from polyrhythm.runtime.wire.shared_memory import SharedVector, fence

WINDOW: Final = 2**21
"""Bytes that are shown at a time: with fewer members wait more often, with more the caches do not hold them."""
SHORT: Final = 2**16
"""Bytes of all members' vectors together that each adds up by itself."""
LONG: Final = 2**18
"""Bytes of a vector that is read where it is: each read takes the kernel its time."""
SCRATCH: Final = 2**20
"""Bytes that are read at a time."""
BLOCK: Final = 2**16
"""Numbers of lent vectors that are added up at a time: a core's cache holds the sum until all have it."""

Meanwhile = Callable[[], None] | None


class SharedBuffers:
    """One member's view of the memory of all.

    Args:
        store: of the members alone.
        rank: of this member.
        size: number of members.
        connect_timeout: limit for all to meet.
        timeout: how long one waits for another at most.

    Raises:
        RuntimeError, OSError: if they do not meet.
    """

    def __init__(self, store: Store, rank: int, size: int, connect_timeout: timedelta, timeout: timedelta) -> None:
        self._rank, self._size = rank, size
        self._timeout_s = timeout.total_seconds()
        self._peer_sockets = PeerSockets(store, rank, size, connect_timeout, on_one_host=True)
        self._sockets = self._peer_sockets.peers
        for connection in self._sockets.values():
            connection.settimeout(self._timeout_s)
        self._memory: SharedVector | None = None
        self._published = self._reduced = self._consumed = 0

    def add_up(self, vector: Tensor, kind: Kind, meanwhile: Meanwhile = None, lends: bool = False) -> None:
        """Combine all members' vectors in the place of this one's; all call this, and have the same bits then.

        Args:
            vector: flat, contiguous, on the CPU, of equal length and type on all.
            kind: how.
            meanwhile: called once, when the others can go on.
            lends: whether the vector's storage may move into memory that the others map, and stay there.

        Raises:
            OSError: if one is gone or does not come in time; the content of `vector` is undefined then.
        """
        if self._memory is None:
            self._share()
        byte_count, call = vector.nbytes, call_of(kind, len(vector))
        if byte_count * self._size <= SHORT:
            self._add_up_whole(vector, kind, call, meanwhile)
        elif byte_count < LONG:
            self._add_up_windows(vector, kind, call, meanwhile)
        else:
            self._add_up_long(vector, kind, call, meanwhile, lends)

    def spread(self, vector: Tensor, source: int, meanwhile: Meanwhile = None) -> None:
        """Give all members the bytes of the member `source`; arguments and errors else as of `add_up`."""
        if self._memory is None:
            self._share()
        call = call_of(BROADCAST, len(vector), source)
        if len(vector) >= LONG:
            self._keep()
        if len(vector) >= LONG and self._peers is not None:
            self._spread_in_place(vector, source, call, meanwhile)
            return
        for start in range(0, len(vector), WINDOW):
            self._spread_window(vector[start : start + WINDOW].numpy(), source, call, meanwhile)
            meanwhile = None

    def end(self) -> None:
        """From any thread: who waits, here or there, waits no more."""
        self._peer_sockets.end()

    def note_mistake(self) -> None:
        if self._memory is not None:
            self._words.note_mistake()

    @property
    def mistaken(self) -> bool:
        return self._memory is not None and self._words.mistaken

    def close(self) -> None:
        """Let go of the connections; what was shown can still be taken."""
        self._peer_sockets.close()

    forget_in_child = close

    # -- the memory ----------------------------------------------------------------------------------------------------

    def _share(self) -> None:
        # It is made when it is first needed, as not every generation sums up on the CPU.
        head = WORDS * 8 * self._size
        elements = (head + (self._size + 1) * SLOTS * WINDOW) // 4
        shared = self._hand_out(elements) if self._rank == 0 else receive_memory(self._sockets[0], elements)
        memory = shared.values.view(torch.uint8)
        self._words = SharedWords(memory[:head].numpy().data, self._rank, self._sockets, self._timeout_s)
        self._memory = shared  # now that another thread may ask for words
        self._space, self._slots = memory[head:], dict[torch.dtype, Any]()
        self._peers, self._scratch = open_peer_memory(self._peer_sockets.gather), torch.empty(0, dtype=torch.uint8)
        self._lender, self._lends = Lender(self._words.own, self._size), True
        self._borrowed = Borrowed(self._words.columns, self._rank)

    def _hand_out(self, elements: int) -> SharedVector:
        memory = SharedVector.create(elements, sparse=True)
        for connection in self._sockets.values():
            with suppress(BrokenPipeError):
                socket.send_fds(connection, [b"\0"], [memory.fd])
        return memory

    def _slots_of(self, kind: Kind) -> Any:
        """The slots, by member and number, for this kind; the last member's are for what is added up."""
        if kind.dtype not in self._slots:
            self._slots[kind.dtype] = kind.numbers(self._space).reshape(self._size + 1, SLOTS, -1)
        return self._slots[kind.dtype]

    # -- steps ---------------------------------------------------------------------------------------------------------

    def _slot(self, call: int) -> int:
        """The slot of the next window, once nobody needs what was there before."""
        self._words.wait(CONSUMED, self._published + 1 - SLOTS)
        slot = self._published % SLOTS
        self._words.own[CALLS + slot] = call
        return slot

    def _publish(self, meanwhile: Meanwhile = None) -> None:
        self._published += 1
        self._words.tell(PUBLISHED, self._published)
        if meanwhile is not None:
            meanwhile()

    def _expect_published(self, number: int, call: int) -> None:
        self._words.wait(PUBLISHED, number)
        self._words.check(call, (number - 1) % SLOTS, range(self._size))

    def _all_reduced(self) -> None:
        self._words.tell(REDUCED, self._published)
        self._words.wait(REDUCED, self._published)

    def _finish(self) -> None:
        self._words.own[REDUCED] = self._reduced = self._consumed = self._published
        self._words.tell(CONSUMED, self._consumed)

    # -- by everyone ---------------------------------------------------------------------------------------------------

    def _add_up_whole(self, vector: Tensor, kind: Kind, call: int, meanwhile: Meanwhile) -> None:
        own, slots = kind.numbers(vector), self._slots_of(kind)
        slot = self._slot(call)
        slots[self._rank, slot, : len(own)] = own
        self._publish(meanwhile)
        self._expect_published(self._published, call)
        for start, stop, order in whole(len(own), self._size, vector.itemsize, kind.most):
            combine_all(kind, [slots[rank, slot, start:stop] for rank in order], own[start:stop])
        self._finish()

    # -- where they are lent -------------------------------------------------------------------------------------------

    def _add_up_long(self, vector: Tensor, kind: Kind, call: int, meanwhile: Meanwhile, lends: bool) -> None:
        if lends and self._lends and self._lender.lend(vector):
            self._borrowed.let_go()
            self._add_up_lent(vector, kind, call, meanwhile)
        else:
            self._keep()
            self._add_up_kept(vector, kind, call, meanwhile)

    def _keep(self) -> None:
        self._lender.keep()
        self._borrowed.let_go()

    def _add_up_lent(self, vector: Tensor, kind: Kind, call: int, meanwhile: Meanwhile) -> None:
        try:
            self._show_nothing(call, meanwhile)
            if self._borrowed.all_lend and self._all_opened(vector, call):
                self._reduce_lent(vector, kind)
                self._finish()
                return
        except BaseException:
            take_back(vector)
            raise
        self._add_up_anew(vector, kind, call)

    def _show_nothing(self, call: int, meanwhile: Meanwhile = None) -> None:
        self._slot(call)
        self._publish(meanwhile)
        self._expect_published(self._published, call)

    def _all_opened(self, vector: Tensor, call: int) -> bool:
        if self._borrowed.some_are_new:
            self._words.own[OPENED] = self._borrowed.open(vector.nbytes)
            self._show_nothing(call)
            self._lends = all(self._words.columns[OPENED])
            self._lender.know(vector)
        return self._lends

    def _reduce_lent(self, vector: Tensor, kind: Kind) -> None:
        vectors = [kind.numbers(each) for each in self._borrowed.vectors(vector.view(torch.uint8))]
        scratch, length = self._numbers_to_scratch(kind), len(vector)
        plan = windows(length, self._size, self._rank, length, vector.itemsize, min(kind.most, BLOCK))
        for start, stop, order in plan[0].parts:
            total = scratch[: stop - start]
            combine_all(kind, [vectors[rank][start:stop] for rank in order], total)
            for each in vectors:
                each[start:stop] = total
        self._all_reduced()

    def _somebody_lends(self, call: int) -> bool:
        """Whether all go another way now than this member has begun."""
        self._expect_published(self._published, call)
        return self._borrowed.somebody_lends

    def _add_up_anew(self, vector: Tensor, kind: Kind, call: int) -> None:
        self._finish()
        self._words.wait(CONSUMED, self._consumed)  # all have seen who lends
        self._keep()
        self._add_up_kept(vector, kind, call)

    def _add_up_kept(self, vector: Tensor, kind: Kind, call: int, meanwhile: Meanwhile = None) -> None:
        if self._size == 2 and self._peers is not None:
            self._add_up_in_place(vector, kind, call, meanwhile)
        else:
            self._add_up_windows(vector, kind, call, meanwhile)

    # -- in windows ----------------------------------------------------------------------------------------------------

    def _add_up_windows(self, vector: Tensor, kind: Kind, call: int, meanwhile: Meanwhile) -> None:
        own, slots, width = kind.numbers(vector), self._slots_of(kind), WINDOW // vector.itemsize
        plan = windows(len(own), self._size, self._rank, width, vector.itemsize, kind.most)
        self._show(own, slots, plan[0], call, meanwhile)
        if vector.nbytes >= LONG and self._somebody_lends(call):
            self._add_up_anew(vector, kind, call)
            return
        for number, window in enumerate(plan):
            if number + 1 < len(plan):
                self._show(own, slots, plan[number + 1], call)
            self._reduce(own, slots, window, kind, call)
            if number:
                self._collect(own, slots, plan[number - 1])
        self._collect(own, slots, plan[-1])

    def _show(self, own: Any, slots: Any, window: Window, call: int, meanwhile: Meanwhile = None) -> None:
        buffer, start = slots[self._rank, self._slot(call)], window.start
        if window.first > start:
            buffer[: window.first - start] = own[start : window.first]
        if window.last < window.stop:
            buffer[window.last - start : window.stop - start] = own[window.last : window.stop]
        self._publish(meanwhile)

    def _reduce(self, own: Any, slots: Any, window: Window, kind: Kind, call: int) -> None:
        self._expect_published(self._reduced + 1, call)
        slot, base = self._reduced % SLOTS, window.start
        for start, stop, order in window.parts:
            shown = [
                own[start:stop] if rank == self._rank else slots[rank, slot, start - base : stop - base]
                for rank in order
            ]
            combine_all(kind, shown, slots[self._size, slot, start - base : stop - base])
        self._reduced += 1
        self._words.tell(REDUCED, self._reduced)

    def _collect(self, own: Any, slots: Any, window: Window) -> None:
        self._words.wait(REDUCED, self._consumed + 1)
        own[window.start : window.stop] = slots[self._size, self._consumed % SLOTS, : window.stop - window.start]
        self._consumed += 1
        self._words.tell(CONSUMED, self._consumed)

    def _spread_window(self, own: Any, source: int, call: int, meanwhile: Meanwhile) -> None:
        slots, slot = self._slots_of(BROADCAST), self._slot(call)
        if source == self._rank:
            slots[source, slot, : len(own)] = own
        self._publish(meanwhile)
        if source != self._rank:
            self._words.wait(PUBLISHED, self._published, source)
            self._words.check(call, slot, (source,))
            own[:] = slots[source, slot, : len(own)]
        self._finish()

    # -- where the vectors are -----------------------------------------------------------------------------------------

    def _add_up_in_place(self, vector: Tensor, kind: Kind, call: int, meanwhile: Meanwhile) -> None:
        item_bytes = vector.itemsize
        pieces = [piece_of(len(vector), self._size, rank, item_bytes) for rank in range(self._size)]
        with self._readable(vector, call, meanwhile):
            if not (lent := self._somebody_lends(call)):
                self._reduce_in_place(vector, kind, pieces[self._rank])
                self._all_reduced()
                for rank, (start, stop, _) in enumerate(pieces):
                    if rank != self._rank:
                        first, count = start * item_bytes, (stop - start) * item_bytes
                        self._fetch(rank, first, vector.data_ptr() + first, count)
                self._expect_readable(range(self._size))
        if lent:
            self._add_up_anew(vector, kind, call)

    def _reduce_in_place(self, vector: Tensor, kind: Kind, piece: OwnedPart) -> None:
        own, scratch, item_bytes = kind.numbers(vector), self._numbers_to_scratch(kind), vector.itemsize
        first, last, (_, *others) = piece
        width = SCRATCH // item_bytes
        for start in range(first, last, width):
            stop = min(start + width, last)
            for rank in others:
                self._fetch(rank, start * item_bytes, self._scratch.data_ptr(), (stop - start) * item_bytes)
                for begin in range(start, stop, kind.most):
                    end = min(begin + kind.most, stop)
                    mine, theirs = own[begin:end], scratch[begin - start : end - start]
                    kind.operation(mine, theirs, out=mine)

    def _numbers_to_scratch(self, kind: Kind) -> Any:
        if not len(self._scratch):
            self._scratch = torch.empty(SCRATCH, dtype=torch.uint8)
        return kind.numbers(self._scratch)

    def _spread_in_place(self, vector: Tensor, source: int, call: int, meanwhile: Meanwhile) -> None:
        with self._readable(vector, call, meanwhile):
            if source != self._rank:
                self._words.wait(PUBLISHED, self._published, source)
                self._words.check(call, (self._published - 1) % SLOTS, (source,))
                self._fetch(source, 0, vector.data_ptr(), len(vector))
                self._expect_readable((source,))

    @contextmanager
    def _readable(self, vector: Tensor, call: int, meanwhile: Meanwhile) -> Iterator[None]:
        """Others read the vector until all are through, or this member gives up."""
        self._slot(call)
        self._words.own[ADDRESS] = vector.data_ptr()
        try:
            self._publish(meanwhile)
            yield
            self._finish()
            self._words.wait(CONSUMED, self._consumed)
        finally:
            self._words.own[ADDRESS] = 0
            fence()

    def _fetch(self, rank: int, offset: int, target: int, count: int) -> None:
        assert self._peers is not None
        self._peers.read(rank, self._words.columns[ADDRESS][rank] + offset, target, count)

    def _expect_readable(self, ranks: Iterable[int]) -> None:
        """What was read is what was there: who gives up takes its vector back first, and may write into it then."""
        fence()
        if not all(self._words.columns[ADDRESS][rank] for rank in ranks):
            raise ConnectionResetError(GONE)


def receive_memory(connection: socket.socket, elements: int) -> SharedVector:
    """The memory that the member there hands out.

    Raises:
        OSError, FrameError: if none comes.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise ConnectionResetError(GONE)
    return SharedVector(descriptors[0], elements, sparse=True)
