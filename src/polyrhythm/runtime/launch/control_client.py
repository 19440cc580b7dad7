"""Talk to a running job from outside: switch its policy, ask how it is."""

from typing import Any

import msgspec

from polyrhythm.errors import FrameError, UnreachableError, UsageError
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import coordinator_address, runnable
from polyrhythm.runtime.wire.protocol import Absent, Address, AskStatus, Status, SwitchTo
from polyrhythm.runtime.wire.shard_protocol import Hello, Rejected, Welcome

PATIENCE_S = 30.0
"""How long the coordinator may take to answer."""


def at(job: str, coordinator: str = "", token: str = "") -> Address:
    return Address(coordinator or coordinator_address(job), job, token)


def switch(address: Address, policy: str) -> Status:
    """Ask a job to change its policy; its state right after it has heard of it.

    Raises:
        UsageError: for an unknown policy.
        UnreachableError: if the job does not answer.
    """
    return ask(address, SwitchTo(runnable(policy)))


def status(address: Address) -> Status:
    """How a job is.

    Raises:
        UnreachableError: if the job does not answer.
    """
    return ask(address, AskStatus())


def absent(address: Address, rank: int) -> Status:
    """Tell a job that the process of a rank has ended, in case it never joined.

    Raises:
        UnreachableError: if the job does not answer.
    """
    return ask(address, Absent(rank))


def ask(address: Address, message: SwitchTo | AskStatus | Absent) -> Status:
    loop, listener = Loop(), ControlHandler()
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Welcome | Rejected | Status)
    try:
        hello = Hello(address.job, "control", 0, address.token)
        channel = join(loop, address.coordinator, hello, decoder, listener, PATIENCE_S)
        channel.send(message)
        loop.run_until(lambda: listener.answer or listener.reason, PATIENCE_S)
    finally:
        loop.close()
    if listener.answer is None:
        kind = UsageError if listener.refused else UnreachableError
        raise kind(f"job {address.job} did not answer: {listener.reason or f'silent for {PATIENCE_S:g} s'}")
    return listener.answer


class ControlHandler:
    def __init__(self) -> None:
        self.answer: Status | None = None
        self.reason = ""
        self.refused = False

    def received(self, message: Any) -> None:
        if isinstance(message, Status):
            self.answer = message
        elif isinstance(message, Rejected):
            self.reason, self.refused = message.reason, True

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the coordinator announced {payload.nbytes} bytes to a controller")

    def lost(self, reason: str) -> None:
        self.reason = self.reason or reason
