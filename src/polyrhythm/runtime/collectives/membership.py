"""The process group of one generation: built directly on a store, given up as a whole on the first error.

Whoever belongs to a generation meets under the generation's own prefix of the job's store, so that generations never
see each other's keys, and a group that has lost a member is never repaired but replaced.
"""

import os
import threading
import weakref
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from datetime import timedelta
from typing import Any, NoReturn, TypeAlias

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store

from polyrhythm.errors import GroupError, PolyrhythmError, UsageError
from polyrhythm.runtime.collectives.death_watch import DeathWatch
from polyrhythm.runtime.collectives.gloo_connections import build_gloo, destroy, find_devices, leave_devices
from polyrhythm.runtime.collectives.group_health import GroupHealth, first_line
from polyrhythm.runtime.collectives.hosts import host_map
from polyrhythm.runtime.collectives.hosts.hierarchy import form_exchanges
from polyrhythm.runtime.collectives.hosts.host_map import HostMap
from polyrhythm.runtime.collectives.hosts.reach import check_reach
from polyrhythm.runtime.collectives.peer_sockets import PeerSockets
from polyrhythm.runtime.collectives.shared.exchanges import Offer, SharedExchanges
from polyrhythm.runtime.wire.connection import ADDRESS

Backend: TypeAlias = "dist.ProcessGroupGloo | dist.ProcessGroupNCCL"

DEFAULT_TIMEOUT = timedelta(minutes=30)
"""Limit of one collective, torch's own: a slow member is not dead, and the coordinator knows better."""

CONNECT_TIMEOUT = timedelta(seconds=10)
"""Limit for the members of a generation to meet."""

LONGEST = timedelta(days=24)
"""In place of longer limits: no system call waits for more than 2**31 ms."""


class Generation:
    """Collectives among `members`: gloo for tensors on CPU, NCCL for those on CUDA.

    Args:
        store: the job's store, reachable from every member while they meet.
        prefix: name of the generation, never used before in this store.
        members: workers of the generation in the order of their ranks, the same on every member.
        worker: which of them this process is.
        timeout: limit of one collective.
        connect_timeout: limit for all members to meet.
        gathers: whether they will `gather`; then they are connected for it, too.

    Attributes:
        agree: why a collective has failed, if it has, also for others who are to come to the same answer.

    Raises:
        GroupError: if not all members arrive in time.
    """

    def __init__(
        self,
        store: Store,
        prefix: str,
        members: Sequence[int],
        worker: int,
        timeout: timedelta = DEFAULT_TIMEOUT,
        connect_timeout: timedelta = CONNECT_TIMEOUT,
        gathers: bool = False,
    ) -> None:
        self.prefix, self.members, self.worker = prefix, tuple(members), worker
        self.agree: Callable[[str | None], str | None] = lambda failure: failure
        if worker not in self.members:
            raise UsageError(f"worker {worker} is not among the members {self.members} of generation {prefix!r}")
        self.rank, self.size = self.members.index(worker), len(self.members)
        self._store, self._timeout = PrefixStore(prefix, store), min(timeout, LONGEST)
        connect_timeout = min(connect_timeout, LONGEST)
        self._nccl: dist.ProcessGroupNCCL | None = None
        self._peer_sockets: PeerSockets | None = None
        self._gloo: dist.ProcessGroupGloo | None = self._meet(connect_timeout)
        self.shared = self._share_memory(connect_timeout) if self.size > 1 else None
        if gathers:
            self.open_peer_sockets(connect_timeout)

    @property
    def failure(self) -> str | None:
        return self.health.failure

    @property
    def mistaken(self) -> bool:
        """Whether it has failed though all are still there: they have called for different things, or not in time."""
        if self.failure is None:
            return False
        return self.health.is_late or (self.shared is not None and self.shared.mistaken) or self._watch.was_late

    def backend(self, on_gpu: bool) -> Backend:
        """The group for tensors there, or on the CPU; asked so because a device's type is slow to read."""
        group = self._nccl_group() if on_gpu else self._gloo
        assert group is not None, f"generation {self.prefix!r} is closed"
        return group

    def in_memory(self, name: str, tensors: list[torch.Tensor], options: Any, lends: bool = False) -> Offer | None:
        """That collective in memory that the members share, if it can be had; see `SharedExchanges.offer`."""
        return self.shared.offer(name, tensors, options, lends) if self.shared else None

    def open_peer_sockets(self, timeout: timedelta = CONNECT_TIMEOUT) -> None:
        """Connect the members for `gather`; all of them call this.

        Raises:
            GroupError: if one of them does not come.
        """
        try:
            self._peer_sockets = PeerSockets(self._store, self.rank, self.size, timeout)
        except (RuntimeError, OSError, PolyrhythmError) as error:
            self._give_up(f"not all of {self.members} could be connected: {first_line(error)}")
        else:
            self.health.await_end(self._peer_sockets)

    def gather(self, record: bytes) -> list[bytes]:
        """Everyone's record of a few bytes, by rank; all of the same length. Faster than a collective.

        Raises:
            GroupError: when a member is lost.
        """
        assert self._peer_sockets is not None, "members open the peer sockets before they gather"
        try:
            return self._peer_sockets.gather(record)
        except OSError as error:
            return self._give_up(f"a member is gone: {first_line(error)}")

    def _give_up(self, reason: str) -> NoReturn:
        self.abort(reason)
        raise GroupError(f"generation {self.prefix!r} among {self.members} failed: {self.failure}") from None

    def abort(self, reason: str) -> None:
        """Give up, from any thread: pending collectives return at once."""
        self.health.fail(reason)
        if self._nccl is not None:
            self._nccl.abort()

    def close(self) -> None:
        """Drop the groups, at once. After a failure gloo's destructor may wait for an operation until its limit."""
        if self._gloo is not None and self.failure is None:
            self._watch.say_goodbye()
        self._stop_watch()
        if self.shared is not None:
            self._stop_sharing()
        if self._peer_sockets is not None:
            self.health.end(self._peer_sockets)
            self._peer_sockets.close()
        groups, self._gloo = [self._gloo], None
        self._nccl = None
        destroy(groups, at_once=self.failure is None)

    def _meet(self, connect_timeout: timedelta) -> dist.ProcessGroupGloo:
        try:
            self._check_reach(connect_timeout)
            return self._build_gloo(connect_timeout)
        except GroupError:
            raise
        except (RuntimeError, OSError) as error:
            raise GroupError(
                f"generation {self.prefix!r}: worker {self.worker} could not meet all of {self.members} within "
                f"{connect_timeout.total_seconds():g} s; leave out the workers that are gone ({first_line(error)})"
            ) from None

    def _check_reach(self, connect_timeout: timedelta) -> None:
        if self.size > 1 and os.environ.get(ADDRESS):
            hosts = (listener.partition(" ")[0] for listener in find_devices().listeners)
            host = min(hosts, default=os.environ[ADDRESS])
            check_reach(self._store, self.rank, self.members, host, connect_timeout)

    def _build_gloo(self, connect_timeout: timedelta) -> dist.ProcessGroupGloo:
        place, limits = (self._store, self.rank, self.size), (connect_timeout, self._timeout)
        group, sockets, grounds = build_gloo(*place, *limits, host_map.common_ground())
        self._hosts = HostMap.of(grounds)
        self.health = GroupHealth(sockets)
        self._watch = DeathWatch(sockets, self._store, self.health)
        self._stop_watch = weakref.finalize(self, self._watch.stop)
        _connected.add(self._watch)
        return group

    def _share_memory(self, connect_timeout: timedelta) -> SharedExchanges | None:
        # Members on one host need no gloo to sum up.
        limits = connect_timeout, self._timeout
        try:
            buffers = form_exchanges(self._store, self.rank, self._hosts, *limits, self.health)
        except (RuntimeError, OSError, PolyrhythmError) as error:
            self._give_up(f"no memory could be shared: {first_line(error)}")
        if buffers is None:
            return None
        shared = SharedExchanges(buffers, self.health)
        self._stop_sharing = weakref.finalize(self, shared.close)
        _connected.add(shared)
        return shared

    def _nccl_group(self) -> "dist.ProcessGroupNCCL":
        """Built with the first CUDA tensor; NCCL itself connects with the first collective."""
        if self._nccl is None:
            # A failed collective shall end the communicator (2), not the process (torch's default).
            os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
            options = dist.ProcessGroupNCCL.Options()
            options._timeout = self._timeout
            self._nccl = dist.ProcessGroupNCCL(self._store, self.rank, self.size, options)
        return self._nccl


class Building:
    """A generation that is being built, in a thread: whoever waits for it can be let go when a member is gone.

    gloo itself waits for such a member until its limit. What goes on in the thread then ends by itself, and holds the
    store's connection until it does.

    Args:
        prefix, members: of the generation.
        make: builds it, in the thread.
    """

    def __init__(self, prefix: str, members: Sequence[int], make: Callable[[], Generation]) -> None:
        self.prefix, self._members = prefix, tuple(members)
        self._built: Future[Generation] = Future()
        threading.Thread(target=build, args=(self._built, make), daemon=True, name="polyrhythm-building").start()

    def wait(self) -> Generation:
        """The generation.

        Raises:
            UsageError, GroupError: as of `Generation`, or if it was aborted.
        """
        try:
            return self._built.result()
        finally:
            del self  # it has the error, whose traceback has this frame and all that the group holds open

    def abort(self, reason: str) -> None:
        """Give up, from any thread: whoever waits, waits no more."""
        if self._built.done():
            return
        leave_devices()
        error = GroupError(f"generation {self.prefix!r} among {self._members} was given up before it stood: {reason}")
        with suppress(InvalidStateError):
            self._built.set_exception(error)
            GroupHealth.failures += 1


def build(built: "Future[Generation]", make: Callable[[], Generation]) -> None:
    """Body of the thread; a generation that nobody waits for any more is closed."""
    try:
        generation = make()
    except BaseException as error:  # whatever it is, somebody waits
        with suppress(InvalidStateError):
            built.set_exception(error)
        del built  # as above
        return
    try:
        built.set_result(generation)
    except InvalidStateError:
        generation.abort("it was given up before it stood")
        generation.close()


_connected: "weakref.WeakSet[DeathWatch | SharedExchanges]" = weakref.WeakSet()


def _forget_in_child() -> None:
    for connected in list(_connected):
        connected.forget_in_child()


os.register_at_fork(after_in_child=_forget_in_child)
