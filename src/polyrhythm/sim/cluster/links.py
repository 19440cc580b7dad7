"""How long messages take: the network of a scenario, and links whose bandwidth is shared max-min fairly.

A message first occupies the links for as long as its bytes need, then arrives one latency later. A worker sends and
receives one message at a time, so its own NIC only caps a flow; what flows compete for is the NIC of the server.
"""

import heapq
import math
from bisect import insort
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

import msgspec

from polyrhythm.sim.cluster.units import Bytes, Count, Gigabits, Seconds

BYTES_PER_GIGABIT = 1e9 / 8

Carried = TypeVar("Carried")


class Network(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """What connects the workers with the parameter server and with one another. The default costs nothing.

    The NICs of the workers stand with the devices.
    """

    message_bytes: Bytes = 0.0
    """Size of the gradients or parameters of the whole model, in bytes."""

    server_gbps: Gigabits = math.inf
    """Bandwidth of the NIC of each server, in gigabits a second, shared fairly by the messages in flight."""

    shards: Count = 1
    """Servers among which the parameters are split evenly, each with a NIC of its own."""

    latency_s: Seconds = 0.0
    """Time from the last byte sent to its arrival, in seconds, in each direction."""

    service_s: Seconds = 0.0
    """Time that the server works on each push, one after the other in order of arrival, before it counts; seconds."""

    combine_s: Seconds = 0.0
    """Time that the server works on each gradient of an update of several, before anyone goes on; seconds."""

    averaging_s: Seconds | None = None
    """What a ring all-reduce takes beside its bytes, in seconds; none: the latency of its 2 (m - 1) hops."""

    hidden_s: Seconds = 0.0
    """What of a ring all-reduce of gradients passes while the backward pass still computes others, in seconds."""

    hosts: Count | None = None
    """Hosts on which the workers are, evenly and in the order of their numbers: a ring all-reduce adds up on each host
    first, and goes over the links of the hosts; none: each worker is on a host of its own."""

    duplex: Literal["full", "half"] = "full"
    """full: a server sends and receives at the full rate at once. half: both directions share it."""

    averaging: Literal["server", "ring"] = "server"
    """server: push and pull through the server. ring: all-reduce, of gradients where the policy allows it."""

    def parties(self, members: Iterable[int], workers: int) -> int:
        """Among how many a ring all-reduce of these members goes, of so many workers.

        >>> Network().parties((0, 1, 2), 4), Network(hosts=2).parties((0, 1, 2), 4), Network(hosts=2).parties((0, 1), 4)
        (3, 2, 1)
        """
        if self.hosts is None:
            return len({*members})
        return len({member * self.hosts // workers for member in members})

    @property
    def server_bytes_per_s(self) -> float:
        """Bandwidth of all shards together; they are alike, so every message spreads over all of them evenly."""
        return self.server_gbps * self.shards * BYTES_PER_GIGABIT

    def links(self) -> "tuple[SharedLink[Any], SharedLink[Any]] | None":
        """Links to and from the servers, one and the same if half duplex; None if nothing competes for them."""
        if not self.message_bytes or math.isinf(self.server_gbps):
            return None
        ingress: SharedLink[Any] = SharedLink(self.server_bytes_per_s)
        return ingress, ingress if self.duplex == "half" else SharedLink(self.server_bytes_per_s)


def all_reduce_s(network: Network, workers: int, size: float, bytes_per_s: float, latency_s: float) -> float:
    """Duration of a ring all-reduce on a network; see `ring_s` for the arguments."""
    if network.averaging_s is None:
        return ring_s(workers, size, bytes_per_s, latency_s)
    return ring_s(workers, size, bytes_per_s) + network.averaging_s


def ring_s(workers: int, size: float, bytes_per_s: float, latency_s: float = 0.0) -> float:
    """Duration of a ring all-reduce: ``2 (m - 1) / m * size / bandwidth + 2 (m - 1) * latency``.

    Args:
        workers: m, the number of participants.
        size: bytes that each of them contributes.
        bytes_per_s: the slowest of their links.
        latency_s: of one hop.

    >>> ring_s(workers=4, size=100, bytes_per_s=50, latency_s=0.5)
    6.0
    """
    hops = 2 * (workers - 1)
    return hops / workers * size / bytes_per_s + hops * latency_s


@dataclass(slots=True, eq=False)
class Flow(Generic[Carried]):
    """A message on its way."""

    link: "SharedLink[Carried]"
    group: "Group[Carried]"
    payload: Carried
    live: bool = True


@dataclass(slots=True, eq=False)
class Group(Generic[Carried]):
    """Flows with one cap. They always have one rate, so they end in the order of `moved` at arrival + size.

    Args:
        cap: largest rate of one flow, bytes/s.
        rate: present rate of each flow, bytes/s.
        moved: bytes that a flow would have moved if it had been here since the group was last empty.
        count: live flows.
        queue: (value of `moved` at which a flow ends, order of arrival, flow).
        next_s: when the first flow ends.
    """

    cap: float
    rate: float = 0.0
    moved: float = 0.0
    count: int = 0
    queue: list[tuple[float, int, Flow[Carried]]] = field(default_factory=list)
    next_s: float = math.inf

    def discard_removed(self) -> None:
        """Forget flows at the head of the queue that were removed; start over when there are none."""
        while self.queue and not self.queue[0][2].live:
            heapq.heappop(self.queue)
        if not self.count:
            self.queue.clear()
            self.moved = 0.0


@dataclass(slots=True, eq=False)
class SharedLink(Generic[Carried]):
    """A link that its flows share max-min fairly, each capped by a rate of its own.

    A flow gets ``min(cap, level)``, where the level is such that the link is full or every flow at its cap. Flows with
    the same cap form a group and are advanced together, so an event costs O(log flows + caps).

    Example:
        >>> link = SharedLink(capacity=10.0)
        >>> slow, fast = link.add(0.0, 30.0, 3.0, "slow"), link.add(0.0, 35.0, 100.0, "fast")
        >>> link.next_s(), link.pop(5.0), link.next_s()
        (5.0, ['fast'], 10.0)
    """

    capacity: float
    now_s: float = 0.0
    groups: list[Group[Carried]] = field(default_factory=list)
    by_cap: dict[float, Group[Carried]] = field(default_factory=dict)
    arrivals: int = 0
    flows: int = 0
    stale: bool = False
    first_s: float = math.inf
    serial: int = 0
    """Counts the changes of who flows; whoever waits for `next_s` asks again when it has moved on."""

    def add(self, now_s: float, size: float, cap: float, payload: Carried) -> Flow[Carried]:
        self._advance(now_s)
        group = self.by_cap.get(cap) or self._open(cap)
        flow = Flow(self, group, payload)
        self.arrivals += 1
        heapq.heappush(group.queue, (group.moved + size, self.arrivals, flow))
        group.count += 1
        self.flows += 1
        self._touch()
        return flow

    def remove(self, now_s: float, flow: Flow[Carried]) -> None:
        """A message is abandoned; nothing happens if it has ended."""
        if not flow.live:
            return
        self._advance(now_s)
        flow.live = False
        flow.group.count -= 1
        self.flows -= 1
        flow.group.discard_removed()
        self._touch()

    def next_s(self) -> float:
        """When the next message ends if nobody comes or goes; inf if there is none."""
        if self.stale:
            self._share()
        return self.first_s

    def pop(self, now_s: float) -> list[Carried]:
        """What ends at `now_s`, which must not be later than `next_s`, in order of arrival within a cap."""
        self._advance(now_s)
        ended: list[Carried] = []
        for group in self.groups:
            if group.next_s <= now_s:
                # Rounding may have left the first flow a hair short of its end.
                group.moved = max(group.moved, group.queue[0][0])
                self._pop_group(group, ended)
        self._touch()
        return ended

    def _pop_group(self, group: Group[Carried], ended: list[Carried]) -> None:
        while group.queue and group.queue[0][0] <= group.moved:
            flow = heapq.heappop(group.queue)[2]
            flow.live = False
            group.count -= 1
            self.flows -= 1
            ended.append(flow.payload)
            group.discard_removed()

    def _open(self, cap: float) -> Group[Carried]:
        group = self.by_cap[cap] = Group(cap)
        insort(self.groups, group, key=lambda group: group.cap)
        return group

    def _touch(self) -> None:
        self.stale = True
        self.serial += 1

    def _advance(self, now_s: float) -> None:
        if now_s == self.now_s:
            return
        if self.stale:
            self._share()
        elapsed = now_s - self.now_s
        for group in self.groups:
            if group.count:
                group.moved += group.rate * elapsed
        self.now_s = now_s

    def _share(self) -> None:
        """Water-filling: the lowest caps take what they can, the others share what is left evenly."""
        self.stale, self.first_s = False, math.inf
        capacity, flows = self.capacity, self.flows
        for group in self.groups:
            if not group.count:
                group.next_s = math.inf
                continue
            group.rate = min(group.cap, capacity / flows)
            capacity -= group.rate * group.count
            flows -= group.count
            group.next_s = self.now_s + max(0.0, group.queue[0][0] - group.moved) / group.rate
            self.first_s = min(self.first_s, group.next_s)
