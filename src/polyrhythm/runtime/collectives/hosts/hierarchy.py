"""Sums and broadcasts of members on several hosts, some of which have several members.

The members of a host add up in the memory that they share. One of them, the host's leader, takes part in an all-reduce
among the hosts, and the others have its result from memory. So a vector crosses the link of a host once for all its
members. A long vector goes in chunks: one is added up on the hosts while another one is between them.
"""

from datetime import timedelta
from typing import Final, TypeAlias

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from polyrhythm.runtime.collectives.group_health import GroupHealth
from polyrhythm.runtime.collectives.hosts.host_map import HostMap
from polyrhythm.runtime.collectives.hosts.leaders import Leaders
from polyrhythm.runtime.collectives.shared.buffers import Meanwhile, SharedBuffers
from polyrhythm.runtime.collectives.shared.kinds import Kind

CHUNK: Final = 2**20
"""Bytes of a long vector that go between hosts at a time."""

Sent: TypeAlias = tuple[Tensor, dist.Work | None]
"""A chunk that is between the hosts; a leader has the handle."""


class Hierarchy:
    """One member's view of its host and, if it leads that, of the others; used as `SharedBuffers` are.

    Args:
        store: of the members alone.
        rank: of this member.
        hosts: where all are.
        connect_timeout: limit for all to meet.
        timeout: how long one waits for another at most.
        health: of the generation.

    Raises:
        RuntimeError, OSError: if they do not meet.
    """

    def __init__(
        self,
        store: Store,
        rank: int,
        hosts: HostMap,
        connect_timeout: timedelta,
        timeout: timedelta,
        health: GroupHealth,
    ) -> None:
        self._hosts, limits = hosts, (connect_timeout, timeout)
        self._host, own = hosts.place_of(rank)
        size = len(hosts.hosts[self._host])
        between, here = PrefixStore("leaders", store), PrefixStore(f"buffers/{self._host}", store)
        self._leaders = Leaders(between, self._host, len(hosts.hosts), *limits, health) if own == 0 else None
        self._memory = SharedBuffers(here, own, size, *limits) if size > 1 else None

    def add_up(self, vector: Tensor, kind: Kind, meanwhile: Meanwhile = None, lends: bool = False) -> None:
        """As `SharedBuffers.add_up`, but nothing is lent; the bits are the same on all hosts, too."""
        del lends
        sent: Sent | None = None
        for chunk in torch.split(vector, CHUNK // vector.itemsize):
            following = self._send(chunk, kind, meanwhile)
            if sent is not None:
                self._arrive(*sent)
            sent, meanwhile = following, None
        assert sent is not None, "a vector has a number"
        self._arrive(*sent)

    def spread(self, vector: Tensor, source: int, meanwhile: Meanwhile = None) -> None:
        host, member = self._hosts.place_of(source)
        if host == self._host:
            self._spread_here(vector, member, meanwhile)
            meanwhile = None
        if self._leaders is not None:
            self._leaders.spread(vector, host)
        if host != self._host:
            self._spread_here(vector, 0, meanwhile)

    def end(self) -> None:
        """From any thread: who waits, here or there, waits no more."""
        for part in (self._memory, self._leaders):
            if part is not None:
                part.end()

    def close(self) -> None:
        for part in (self._memory, self._leaders):
            if part is not None:
                part.close()

    def note_mistake(self) -> None:
        """To members of this host only."""
        if self._memory is not None:
            self._memory.note_mistake()

    @property
    def mistaken(self) -> bool:
        return self._memory is not None and self._memory.mistaken

    def forget_in_child(self) -> None:
        """After a fork: close the child's copies of the connections."""
        for part in (self._memory, self._leaders):
            if part is not None:
                part.forget_in_child()

    def _send(self, chunk: Tensor, kind: Kind, meanwhile: Meanwhile) -> Sent:
        """The host's sum, on its way to the others."""
        if self._memory is not None:
            self._memory.add_up(chunk, kind, meanwhile)
        work = self._leaders.start_sum(chunk, kind) if self._leaders is not None else None
        if self._memory is None and meanwhile is not None:
            meanwhile()
        return chunk, work

    def _arrive(self, chunk: Tensor, work: dist.Work | None) -> None:
        """The sum of all hosts, in the memory of this one."""
        if self._leaders is not None and work is not None:
            self._leaders.wait(work, chunk)
        self._spread_here(chunk, 0, None)

    def _spread_here(self, vector: Tensor, source: int, meanwhile: Meanwhile) -> None:
        if self._memory is not None:
            self._memory.spread(vector.view(torch.uint8), source, meanwhile)
        elif meanwhile is not None:
            meanwhile()


def form_exchanges(
    store: Store, rank: int, hosts: HostMap, connect_timeout: timedelta, timeout: timedelta, health: GroupHealth
) -> SharedBuffers | Hierarchy | None:
    """How the members that meet at this store sum up in memory; None if none of them shares any with another one.

    Raises:
        RuntimeError, OSError: if they do not meet.
    """
    if hosts.all_alone:
        return None
    if hosts.all_together:
        return SharedBuffers(PrefixStore("buffers", store), rank, len(hosts.hosts[0]), connect_timeout, timeout)
    return Hierarchy(store, rank, hosts, connect_timeout, timeout, health)
