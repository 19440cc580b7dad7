"""Signs of life in both directions, in a thread of their own, and what must reach who stands in a collective."""

from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from polyrhythm.core import Policy
from polyrhythm.errors import FrameError, PolyrhythmError, UsageError, may_raise
from polyrhythm.policies import parse_policy
from polyrhythm.runtime.checkpoint.manifest import Saved
from polyrhythm.runtime.wire.connection import Channel
from polyrhythm.runtime.wire.event_loop import LoopThread
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.protocol import Confirmed, Cut, Heartbeat, LeaveJob, Propose
from polyrhythm.runtime.wire.shard_protocol import Hello, Rejected
from polyrhythm.runtime.worker.losses.figures import ScriptFigures
from polyrhythm.runtime.worker.presence.route import Route

RETURN_S = 30.0
"""How long a coordinator may take to follow one that has died."""

REFUSED_S, AGAIN_S = 2.0, 0.05
"""How long one may refuse a heartbeat, and the pause between two attempts."""


class Silence:
    """How long the other side has been silent, as far as this process could hear it.

    Args:
        period_s: seconds between two looks.
        limit_s: seconds of silence that are too many.
        now_s: the time.

    Example:
        >>> silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
        >>> [silence.is_too_long(now_s) for now_s in (1.0, 2.0, 3.0, 4.0)]
        [False, False, False, True]
    """

    def __init__(self, period_s: float, limit_s: float, now_s: float) -> None:
        self._period_s, self._limit_s = period_s, limit_s
        self._heard_s = self._looked_s = now_s

    def hear(self, now_s: float) -> None:
        self._heard_s = now_s

    def is_too_long(self, now_s: float) -> bool:
        if now_s - self._looked_s > 2 * self._period_s:  # this process itself was stopped, such as by Ctrl-Z
            self._heard_s = now_s
        self._looked_s = now_s
        return now_s - self._heard_s > self._limit_s


class HeartbeatOwner(Protocol):
    """Whose heartbeat it is; all but `reported` is called in the heartbeat's thread."""

    reported: ScriptFigures

    objection: Callable[[Policy[Any]], str]
    """Why the script cannot follow a policy, after what it has done so far; empty if it can."""

    def cut(self, message: Cut) -> None:
        """A collective will never end."""

    def ask_to_leave(self) -> None:
        """Somebody outside wants this worker to leave the job."""

    def lose(self, reason: str, final: bool, silent: bool = False) -> None:
        """The coordinator does not answer any more, or, unless that is final, another one will take its place; of one
        that is `silent` no connection ends by itself.
        """

    @property
    def recovers(self) -> bool:
        """Whether another coordinator follows one that dies."""


class HeartbeatThread(LoopThread):
    """Tells the coordinator that this process is running, also while it computes, and hears the same of it.

    A stopped process misses its heartbeats. One that was stopped itself cannot tell, and listens once more. When the
    coordinator dies and another one follows, this thread meets it by itself, however long a step of the worker takes.

    Args:
        route: to the coordinator.
        rank: of this worker.
        period_s: seconds between two heartbeats.
        limit_s: seconds of silence after which the coordinator is given up.
        owner: told, in this thread, what the coordinator says; what its script has reported goes with the heartbeats.
    """

    def __init__(
        self,
        route: Route,
        rank: int,
        period_s: float,
        limit_s: float,
        owner: HeartbeatOwner,
    ) -> None:
        super().__init__("polyrhythm-heartbeat")
        self._period_s, self._limit_s = period_s, limit_s
        self._owner = owner
        self._route, self._hello = route, Hello(route.address.job, "heartbeat", rank)
        self._silent = self._gone = False
        self._channel = self._join()
        self._silence = Silence(period_s, limit_s, self.loop.clock())
        self.loop.call_later(0.0, self._beat)
        self.start()

    def _join(self) -> Channel:
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Rejected | Cut | LeaveJob | Propose | Heartbeat)
        address = self._route.address
        return join(self.loop, address.coordinator, self._hello, decoder, self, token=address.token)

    def run(self) -> None:
        while not self._stopping:
            self.loop.step()
            if self._gone and not self._stopping:
                self._join_next()

    def _join_next(self) -> None:
        """Meet the next coordinator, which may die, too; one that refuses for a while does not want this worker."""
        begun_s = self.loop.clock()
        while self._gone and not self._stopping:
            try:
                self._route.find(RETURN_S, lambda: self._stopping)
            except PolyrhythmError as error:
                self._give_up(str(error))
                return
            try:
                self._channel, self._gone = self._join(), False
            except PolyrhythmError as error:
                limit_s = REFUSED_S if isinstance(error, UsageError) else RETURN_S
                if self.loop.clock() > begun_s + limit_s:
                    self._give_up(str(error))
                    return
                self.loop.run_until(lambda: self._stopping, AGAIN_S)
            self._silence.hear(self.loop.clock())

    def _give_up(self, reason: str) -> None:
        self.end()
        self._owner.lose(reason, final=True)

    def tell(self, message: Saved) -> None:
        """From any thread."""
        self.loop.call_from_thread(lambda: self._channel.send(message))

    def received(self, message: Any) -> None:
        self._silence.hear(self.loop.clock())
        if isinstance(message, Cut):
            self._owner.cut(message)
        elif isinstance(message, Propose):
            self._channel.send(Confirmed(message.number, refusal_of(message.policy, self._owner.objection)))
        elif isinstance(message, LeaveJob):
            self._owner.ask_to_leave()

    def destination(self, message: Any, payload: Any) -> memoryview:
        raise FrameError("the coordinator sent numbers to a heartbeat")

    def lost(self, reason: str) -> None:
        silent, self._silent = self._silent, False
        self._gone = self._owner.recovers and (not silent or self._route.move())
        if not self._gone:
            self.end()
        self._owner.lose(reason, final=not self._gone, silent=silent)

    def _beat(self) -> None:
        self.loop.call_later(self._period_s, self._beat)
        if self._silence.is_too_long(self.loop.clock()) and not self._gone:
            self._silent = True
            self._channel.end(f"the coordinator has not answered for {self._limit_s:g} s; see --hang-after")
            return
        self._channel.send(Heartbeat(self._owner.reported.take()))


def no_objection(policy: Policy[Any]) -> str:
    """Of a script that opens a session: it is made for all policies."""
    del policy
    return ""


def refusal_of(policy: str, objection: Callable[[Policy[Any]], str]) -> str:
    """Why this process cannot run a policy; its file or module may do anything when it is loaded."""
    try:
        return objection(parse_policy(policy))
    except may_raise() as error:
        return str(error) or repr(error)
