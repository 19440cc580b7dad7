"""The line to the coordinator of a group: its leader has it, and tells the others what comes in."""

import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any, Final, cast

import msgspec
from torch.distributed import TCPStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore

from polyrhythm.errors import UsageError
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.checkpoint.returned import JobState, Returned
from polyrhythm.runtime.collectives.peer_sockets import PeerSockets, know_token, receive
from polyrhythm.runtime.launch.preemption import LEFT
from polyrhythm.runtime.launch.rendezvous import COORDINATOR
from polyrhythm.runtime.launch.restarts import tell_status
from polyrhythm.runtime.wire.job_config import JobConfig
from polyrhythm.runtime.wire.protocol import Address, Cut, JobInfo, ToCoordinator, ToWorker
from polyrhythm.runtime.worker.client import ENDED, CoordinatorClient, open_store
from polyrhythm.runtime.worker.ddp_exchange import DDPExchange
from polyrhythm.runtime.worker.group.link import GroupLink
from polyrhythm.runtime.worker.losses.figures import ScriptFigures
from polyrhythm.runtime.worker.presence.cuts import PhaseExchange, phase_name
from polyrhythm.runtime.worker.presence.heartbeat import no_objection
from polyrhythm.runtime.worker.replica import ScriptReplica

MEETING: Final = timedelta(minutes=5)
"""How long the processes of a group may take to connect."""

LEAVE: Final = b"leave"
"""In place of a message: the group leaves the job."""

LENGTH_BYTES: Final = 4


class LeaderClient(CoordinatorClient):
    """The group's leader: all that it hears it shares, at the moment at which the others wait for it."""

    def __init__(
        self, address: Address, rank: int, replica: ScriptReplica, arguments: Mapping[str, Any], link: GroupLink
    ) -> None:
        self._peers: PeerSockets | None = None
        super().__init__(address, rank, replica, arguments)
        self._link = link
        link.share(msgspec.msgpack.encode(self.info))
        self._store = open_store(self.info.store)
        self._peers = connect(self._store, link)

    def receive(self, within_step: bool = False) -> ToWorker:
        try:
            message = super().receive(within_step)
        except SystemExit:
            self._link.share(LEAVE)
            raise
        self._link.share(msgspec.msgpack.encode(message))
        return message

    def poll(self) -> ToWorker | None:
        message = super().poll()
        self._link.share(b"" if message is None else msgspec.msgpack.encode(message))
        return message

    def is_awaited(self, epoch: int) -> bool:
        """Not by itself: the processes of a group begin an epoch together."""
        return False

    def ask_state(self, version: int | None = None) -> JobState:
        told = super().ask_state(version)
        self._link.share(msgspec.msgpack.encode(told))
        return told

    def meet(self, exchange: DDPExchange, members: tuple[int, ...], phase: int, gathers: bool = False) -> None:
        meet = super().meet
        self._link.together(lambda: meet(exchange, members, phase, gathers))

    def cut(self, message: Cut) -> None:
        super().cut(message)
        data = msgspec.msgpack.encode(message)
        for peer in self._peers.peers.values() if self._peers is not None else ():
            with suppress(OSError):
                peer.sendall(len(data).to_bytes(LENGTH_BYTES, "little") + data)

    def close(self) -> None:
        super().close()
        if self._peers is not None:
            self._peers.close()


class FollowerClient:
    """Another process of the group: it hears what its leader hears, and says nothing. See `JobClient`."""

    full_duplex = False
    objection = staticmethod(no_objection)

    def __init__(self, address: Address, link: GroupLink) -> None:
        self._link = link
        self.info: JobInfo = self._hear(JobInfo)
        self.reported = ScriptFigures()
        know_token(address.token)
        self._store: TCPStore | None = open_store(self.info.store)
        self._peers = connect(self._store, link)
        self._at_hand = PhaseExchange(self._name)
        threading.Thread(target=self._await_cuts, daemon=True, name="polyrhythm-cuts").start()

    @property
    def config(self) -> JobConfig:
        return self.info.config

    def tell_figures(self, values: Mapping[str, Any]) -> None:
        self.reported.tell(values)

    def receive(self, within_step: bool = False) -> ToWorker:
        message: ToWorker = self._hear(ToWorker)
        return message

    def poll(self) -> ToWorker | None:
        message: ToWorker | None = self._hear(ToWorker | None)
        return message

    is_awaited = LeaderClient.is_awaited

    def ask_state(self, version: int | None = None) -> JobState:
        told: JobState = self._hear(JobState)
        return told

    def meet(self, exchange: DDPExchange, members: tuple[int, ...], phase: int, gathers: bool = False) -> None:
        """As of `CoordinatorClient`, among the processes of this place."""
        self._at_hand.begin(exchange, self.config)
        self._link.together(lambda: self._meet(exchange, members, self._name(phase), gathers))

    def _meet(self, exchange: DDPExchange, members: tuple[int, ...], name: str, gathers: bool) -> None:
        store, self._store = self._store or open_store(self.info.store), None
        exchange.meet(store, members, name, gathers)
        self._store = store  # what still builds after a failure keeps it

    def close(self) -> None:
        self._peers.end()
        self._peers.close()

    def send(self, message: ToCoordinator) -> None:
        """The leader says it."""

    hold = send

    def flush(self) -> None:
        """The leader does."""

    interrupt = flush

    def tell_aside(self, message: Saved) -> None:
        """The leader does."""

    def when_asked_to_leave(self, leave: Callable[[], None]) -> None:
        """The leader is asked."""

    def _name(self, phase: int) -> str:
        return f"{phase_name(phase)}-slice-{self._link.place.place}"

    def _hear(self, kind: Any) -> Any:
        word = self._link.share()
        if word == LEAVE:
            raise SystemExit(tell_status(LEFT))
        return msgspec.msgpack.decode(word, type=kind) if word else None

    def _await_cuts(self) -> None:
        (leader,) = [peer for place, peer in self._peers.peers.items() if place == 0]
        with suppress(OSError):
            while True:
                length = int.from_bytes(receive(leader, LENGTH_BYTES), "little")
                self._at_hand.cut(msgspec.msgpack.decode(receive(leader, length), type=Cut))

    # What only servers need, on which no sharded model is.

    def push(self, number: int) -> int | None:
        raise AssertionError("a sharded model is on no server")

    swap = pull = upload = download = push

    def take_swapped(self) -> None:
        raise AssertionError("a sharded model is on no server")

    def come_back(self, returned: Returned) -> None:
        raise AssertionError("the coordinator of groups is not started again")


def connect(store: Any, link: GroupLink) -> PeerSockets:
    """The processes of a group, for what cannot wait until they meet in a collective."""
    place = link.place
    return PeerSockets(PrefixStore(f"group-{place.group}", store), place.place, place.size, MEETING, on_one_host=True)


def make_client(
    address: Address,
    rank: int,
    replica: ScriptReplica,
    arguments: Mapping[str, Any],
    link: GroupLink | None,
    trainings: int = 0,
) -> CoordinatorClient:
    """That of a session; a follower's has all that a session calls.

    Raises:
        UsageError: if this process has had one whose coordinator is the launcher's, and so ends with it, and the script
            is no unmodified one, whose trainings are counted.
    """
    if address.job in ENDED and not trainings and COORDINATOR in os.environ:
        raise UsageError(
            f"a second session in job {address.job}: the job ends with the first one; start one job for each, or train "
            "several times with an unmodified script"
        )
    if link is None:
        return CoordinatorClient(address, rank, replica, arguments, trainings=trainings)
    if link.leads:
        return LeaderClient(address, rank, replica, arguments, link)
    return cast(CoordinatorClient, FollowerClient(address, link))
