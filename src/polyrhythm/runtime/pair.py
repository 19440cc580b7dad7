"""Sums of two members that share memory: sooner than gloo's, which sends over TCP even to the same host.

Each has a ring of chunks that the other one can read, and says in front of it how many chunks it has filled and how
many of the other's it has taken. Both put their vector there, chunk by chunk, and add the other's to their own; as
a + b and b + a have the same bits, these are the ones that gloo's sum of two has. Who waits stays awake for a moment
and then sleeps until a byte comes over a Unix socket, whose end is also the end of all waiting.
"""

import ctypes
import os
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Final

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.mesh import meet
from polyrhythm.runtime.nodes import ADDRESS
from polyrhythm.runtime.pacing import RATE
from polyrhythm.runtime.slots import AVAILABLE, SharedVector, fence
from polyrhythm.runtime.spin import Spinner

CHUNK: Final = 2**17
"""Numbers that are shown to the other one at a time: they are still in a cache when it adds them."""
CHUNKS: Final = 4
"""Of a ring. Who is ahead fills so many before it waits for the other one to take them."""

SHOWN: Final = 1
"""Word of a ring: chunks that its owner has filled."""
TAKEN: Final = 2
"""Word of a ring: chunks of the other one's that its owner needs no more."""
AWAITED: Final = 3
"""Word of a ring: which word of the other one its owner sleeps for, 0 while it is awake."""
LENGTHS: Final = 4
"""First of the words, one for each chunk, with the length of the vector that it is from."""

GONE: Final = "the other member is gone"


class Pair:
    """One member's side.

    Args:
        store: of the two alone.
        rank: 0 or 1.
        connect_timeout: limit for both to meet.
        timeout: how long one waits for the other at most.

    Raises:
        RuntimeError, OSError, PolyrhythmError: if they do not meet.
    """

    def __init__(self, store: Store, rank: int, connect_timeout: timedelta, timeout: timedelta) -> None:
        (self._socket,) = meet(store, rank, 2, connect_timeout).values()
        self._socket.settimeout(timeout.total_seconds())
        self._own: SharedVector | None = None
        self._spinner = Spinner()
        self._shown = self._taken = 0

    def add(self, vector: Tensor, meanwhile: Callable[[], None] | None = None) -> None:
        """Add the other member's vector to this one; both call this, and have the same sum then.

        Args:
            vector: flat, contiguous, float32, on the CPU, of equal length on both.
            meanwhile: called once, when the other one can go on.

        Raises:
            OSError: if the other one is gone or does not come in time; the content of `vector` is undefined then.
            PolyrhythmError: if the lengths differ.
        """
        if self._own is None:
            self._exchange_rings()
        length, chunks = len(vector), torch.split(vector, CHUNK)
        self._show(chunks[0], length)
        if meanwhile is not None:
            meanwhile()
        for chunk, following in pairwise(chunks):
            self._show(following, length)
            self._take(chunk, length)
        self._take(chunks[-1], length)

    def end(self) -> None:
        """From any thread: who waits, here or there, waits no more."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Let go of the connection; what was shown can still be taken."""
        self._socket.close()

    # -- details -------------------------------------------------------------------------------------------------------

    def _exchange_rings(self) -> None:
        """Made when they are first needed, as not every epoch sums up on the CPU."""
        own = SharedVector.create(CHUNK * CHUNKS)
        with suppress(BrokenPipeError):
            socket.send_fds(self._socket, [b"\0"], [own.fd])
        _, descriptors, _, _ = socket.recv_fds(self._socket, 1, 1)
        if not descriptors:
            raise ConnectionResetError(GONE)
        self._theirs = SharedVector(descriptors[0], CHUNK * CHUNKS, writable=False)
        self._own, self._words, self._their_words = own, own.words, self._theirs.words

    def _show(self, chunk: Tensor, length: int) -> None:
        assert self._own is not None
        self._await(TAKEN, self._shown + 1 - CHUNKS)
        slot = self._shown % CHUNKS
        ctypes.memmove(self._own.values.data_ptr() + 4 * CHUNK * slot, chunk.data_ptr(), 4 * len(chunk))
        self._words[LENGTHS + slot] = length
        self._shown += 1
        self._tell(SHOWN, self._shown)

    def _take(self, chunk: Tensor, length: int) -> None:
        self._await(SHOWN, self._taken + 1)
        slot = self._taken % CHUNKS
        if self._their_words[LENGTHS + slot] != length:
            raise PolyrhythmError(
                f"a vector of {length} numbers here, of {self._their_words[LENGTHS + slot]} there; all members sum up "
                "the same tensors in the same order"
            )
        chunk.add_(self._theirs.values[CHUNK * slot : CHUNK * slot + len(chunk)])
        self._taken += 1
        self._tell(TAKEN, self._taken)

    def _tell(self, word: int, number: int) -> None:
        fence()
        self._words[word] = number
        fence()
        if self._their_words[AWAITED] == word:
            with suppress(OSError):  # if it is gone, whoever needs it hears of that
                self._socket.send(b"\0")

    def _await(self, word: int, number: int) -> None:
        """Until the other one's word is at least this."""
        if self._their_words[word] < number and not self._spinner.look(partial(self._reached, word, number)):
            self._sleep(word, number)
        fence()

    def _reached(self, word: int, number: int) -> bool:
        return self._their_words[word] >= number

    def _sleep(self, word: int, number: int) -> None:
        self._words[AWAITED] = word
        fence()
        while not self._reached(word, number):
            if not self._socket.recv(64) and not self._reached(word, number):
                raise ConnectionResetError(GONE)
        self._words[AWAITED] = 0


def form_pair(store: Store, rank: int, connect_timeout: timedelta, timeout: timedelta) -> Pair | None:
    """A pair of the two members that meet at this store, if they can share memory.

    Raises:
        RuntimeError, OSError, PolyrhythmError: if they do not meet.
    """
    places = [f"memory/{member}" for member in range(2)]
    store.set(places[rank], common_ground())
    first, second = store.multi_get(places)
    if not first or first != second:
        return None
    return Pair(PrefixStore("pair", store), rank, connect_timeout, timeout)


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


def can_add(tensors: list[Tensor]) -> bool:
    """Whether `Pair.add` takes them."""
    (tensor, *others) = tensors
    return (
        not others
        and tensor.dtype == torch.float32
        and tensor.layout == torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and tensor.numel() > 0
    )
