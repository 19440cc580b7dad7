"""Sums of members that share memory: sooner than gloo's, which sends over TCP even to the same host.

Each member has a buffer of a few chunks that all others can read, and says above it how many chunks it has shown and of
how many it needs the others' no more. All show their vector, chunk by chunk, and each adds up what all have shown, in
the order in which gloo would, so that the sum has the bits of gloo's. Who waits spins for a short time and then
sleeps until a byte comes over a Unix socket, whose end is also the end of all waiting.
"""

import os
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import lru_cache, partial
from itertools import pairwise
from pathlib import Path
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from polyrhythm.errors import UsageError
from polyrhythm.runtime.collectives.peer_sockets import PeerSockets
from polyrhythm.runtime.wire.busy_wait import Spinner
from polyrhythm.runtime.wire.connection import ADDRESS
from polyrhythm.runtime.wire.rate_limit import RATE
from polyrhythm.runtime.wire.shared_memory import AVAILABLE, SharedVector, fence, is_plain

FloatArray: TypeAlias = npt.NDArray[np.float32]

ChunkPart: TypeAlias = tuple[int, int, tuple[int, ...]]
"""Where a part of a chunk begins and ends, and the ranks in the order in which it is added up."""

CHUNK: Final = 2**17
"""Numbers that are shown at a time: they are still in a cache when the others add them."""
CHUNKS: Final = 4
"""Of a buffer. Who is ahead shows so many before it waits for the others to take them."""

PUBLISHED: Final = 1
"""Word of a buffer: chunks that its owner has shown."""
CONSUMED: Final = 2
"""Word of a buffer: chunks of which its owner needs nothing more."""
AWAITED: Final = 3
"""Word of a buffer: for which word of whose its owner sleeps, see `call_for`; 0 while it spins."""
LENGTHS: Final = 4
"""First of the words, one for each chunk, with the length of the vector that it is from."""

MOST_MEMBERS: Final = 8
"""Each adds up everything, so that with many a ring, which divides the work, takes less time."""

SEGMENT: Final = 2**18
"""Numbers of which gloo adds up at most at a time."""
GONE: Final = "a member is gone"


class SharedBuffers:
    """One member's buffer and its view of the others'.

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
        self._rank = rank
        self._peer_sockets = PeerSockets(store, rank, size, connect_timeout)
        self._sockets = self._peer_sockets.peers
        for connection in self._sockets.values():
            connection.settimeout(timeout.total_seconds())
        self._numbers: list[FloatArray] = []
        self._spinner = Spinner()
        self._published = self._consumed = 0

    def add_up(self, vector: Tensor, meanwhile: Callable[[], None] | None = None) -> None:
        """Put the sum of all members' vectors in the place of this one's; all call this, and have the same bits then.

        Args:
            vector: flat, contiguous, float32, on the CPU, of equal length on all.
            meanwhile: called once, when the others can go on.

        Raises:
            OSError: if one is gone or does not come in time; the content of `vector` is undefined then.
            UsageError: if the lengths differ.
        """
        if not self._numbers:
            self._hand_out()
        length, numbers = len(vector), vector.numpy()
        chunks = [numbers[start : start + CHUNK] for start in range(0, length, CHUNK)]
        parts = cut(length, len(self._numbers))
        self._publish(chunks[0], length)
        if meanwhile is not None:
            meanwhile()
        for number, (chunk, following) in enumerate(pairwise(chunks)):
            self._publish(following, length)
            self._consume(chunk, length, parts[number])
        self._consume(chunks[-1], length, parts[-1])

    def end(self) -> None:
        """From any thread: who waits, here or there, waits no more."""
        self._peer_sockets.end()

    def close(self) -> None:
        """Let go of the connections; what was shown can still be taken."""
        self._peer_sockets.close()

    # -- details -------------------------------------------------------------------------------------------------------

    def _hand_out(self) -> None:
        # buffers are made when they are first needed, as not every generation sums up on the CPU.
        own = SharedVector.create(CHUNK * CHUNKS)
        for connection in self._sockets.values():
            with suppress(BrokenPipeError):
                socket.send_fds(connection, [b"\0"], [own.fd])
        buffers = [receive_buffer(connection) for connection in self._sockets.values()]
        buffers.insert(self._rank, own)
        self._numbers = [buffer.values.numpy() for buffer in buffers]
        self._words, self._own = [buffer.words for buffer in buffers], own.words

    def _publish(self, chunk: FloatArray, length: int) -> None:
        self._await(CONSUMED, self._published + 1 - CHUNKS)
        buffer = self._published % CHUNKS
        self._numbers[self._rank][CHUNK * buffer : CHUNK * buffer + len(chunk)] = chunk
        self._own[LENGTHS + buffer] = length
        self._published += 1
        self._tell(PUBLISHED, self._published)

    def _consume(self, chunk: FloatArray, length: int, parts: Sequence[ChunkPart]) -> None:
        self._await(PUBLISHED, self._consumed + 1)
        buffer = self._consumed % CHUNKS
        for words in self._words:
            if words[LENGTHS + buffer] != length:
                raise UsageError(
                    f"a vector of {length} numbers here, of {words[LENGTHS + buffer]} there; all members sum up the "
                    "same tensors in the same order"
                )
        for start, stop, order in parts:
            here, there = CHUNK * buffer + start, CHUNK * buffer + stop
            first, second, *others = [self._numbers[rank][here:there] for rank in order]
            total = np.add(first, second, out=chunk[start:stop])
            for shown in others:
                total += shown
        self._consumed += 1
        self._tell(CONSUMED, self._consumed)

    def _tell(self, word: int, number: int) -> None:
        fence()
        self._own[word] = number
        fence()
        call = call_for(word, self._rank)
        for rank, connection in self._sockets.items():
            if self._words[rank][AWAITED] == call:
                with suppress(OSError):  # if it is gone, whoever needs it hears of that
                    connection.send(b"\0")

    def _await(self, word: int, number: int) -> None:
        for rank in self._sockets:
            if self._words[rank][word] < number and not self._spinner.look(partial(self._reached, word, number, rank)):
                self._sleep(word, number, rank)
        fence()

    def _reached(self, word: int, number: int, rank: int) -> bool:
        return self._words[rank][word] >= number

    def _sleep(self, word: int, number: int, rank: int) -> None:
        self._own[AWAITED] = call_for(word, rank)
        fence()
        while not self._reached(word, number, rank):
            if not self._sockets[rank].recv(64) and not self._reached(word, number, rank):
                raise ConnectionResetError(GONE)
        self._own[AWAITED] = 0


@lru_cache(maxsize=64)
def cut(length: int, size: int) -> tuple[tuple[ChunkPart, ...], ...]:
    """Parts of each chunk of a vector, each with the order in which gloo's ring adds it up.

    gloo cuts a vector in as many pieces as there are members, each of two or more equal segments; piece k goes round
    from member k - 1 downwards, and each adds what comes to its own.

    Example:
        >>> cut(5, 3)
        (((0, 2, (2, 1, 0)), (2, 4, (0, 2, 1)), (4, 5, (1, 0, 2))),)
    """
    segments = max(-(-length // SEGMENT), 2 * size)
    segments += -segments % size
    piece = segments // size * -(-length // segments)
    chunks = []
    for first in range(0, length, CHUNK):
        last = min(first + CHUNK, length)
        pieces = range(first // piece, (last - 1) // piece + 1)
        bounds = [(max(first, k * piece) - first, min(last, (k + 1) * piece) - first, k) for k in pieces]
        chunks.append(tuple((a, b, tuple((k - 1 - i) % size for i in range(size))) for a, b, k in bounds))
    return tuple(chunks)


def call_for(word: int, rank: int) -> int:
    """How one that sleeps says what for; never 0."""
    return rank << 8 | word


def receive_buffer(connection: socket.socket) -> SharedVector:
    """The buffer of the member there, to read.

    Raises:
        OSError, FrameError: if none comes.
    """
    _, descriptors, _, _ = socket.recv_fds(connection, 1, 1, socket.MSG_CMSG_CLOEXEC)
    if not descriptors:
        raise ConnectionResetError(GONE)
    return SharedVector(descriptors[0], CHUNK * CHUNKS, writable=False)


def form_shared_buffers(
    store: Store, rank: int, size: int, connect_timeout: timedelta, timeout: timedelta
) -> SharedBuffers | None:
    """buffers of the members that meet at this store, if they can share memory and are not too many.

    Raises:
        RuntimeError, OSError: if they do not meet.
    """
    if size > MOST_MEMBERS:
        return None
    all_buffers = [f"memory/{member}" for member in range(size)]
    store.set(all_buffers[rank], common_ground())
    grounds = set(store.multi_get(all_buffers))
    if len(grounds) > 1 or not grounds.pop():
        return None
    return SharedBuffers(PrefixStore("buffers", store), rank, size, connect_timeout, timeout)


def common_ground() -> str:
    """What this process has in common with those that it can share memory with; empty if it should not.

    A host is where sockets without an address reach: a container with its own network is another one. In a job on
    several hosts, or with emulated links, numbers travel.
    """
    if not AVAILABLE or os.environ.get(ADDRESS) or os.environ.get(RATE):
        return ""
    try:
        boot, network = Path("/proc/sys/kernel/random/boot_id").read_text(), Path("/proc/self/ns/net").stat()
        return f"{boot.strip()} {network.st_ino}"
    except OSError:
        return ""


def can_add_up(tensors: list[Tensor]) -> bool:
    (tensor, *others) = tensors
    return not others and tensor.layout == torch.strided and is_plain(tensor) and tensor.numel() > 0
