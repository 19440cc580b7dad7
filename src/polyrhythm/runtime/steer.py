"""Talk to a running job from outside: switch its policy, ask how it is."""

from typing import Any

import msgspec

from polyrhythm.errors import PolyrhythmError
from polyrhythm.runtime.control import Absent, AskStatus, Status, SwitchTo
from polyrhythm.runtime.frames import FrameError, Payload
from polyrhythm.runtime.handshake import join
from polyrhythm.runtime.hub_settings import hub_address
from polyrhythm.runtime.job import runnable
from polyrhythm.runtime.loop import Loop
from polyrhythm.runtime.messages import Hello, Rejected, Welcome

PATIENCE_S = 10.0
"""How long the hub may take to answer."""


def switch(job: str, policy: str, token: str = "") -> Status:
    """Ask a job to change its policy; its state right after it has heard of it.

    Raises:
        PolyrhythmError: for an unknown policy, or if the job does not answer.
    """
    return ask(job, SwitchTo(runnable(policy)), token)


def status(job: str, token: str = "") -> Status:
    """How a job is.

    Raises:
        PolyrhythmError: if the job does not answer.
    """
    return ask(job, AskStatus(), token)


def absent(job: str, rank: int, token: str = "") -> Status:
    """Tell a job that the process of a rank has ended, in case it never joined.

    Raises:
        PolyrhythmError: if the job does not answer.
    """
    return ask(job, Absent(rank), token)


def ask(job: str, message: SwitchTo | AskStatus | Absent, token: str) -> Status:
    """One question, one answer."""
    loop, listener = Loop(), Listener()
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Welcome | Rejected | Status)
    try:
        channel = join(loop, hub_address(job), Hello(job, "control", 0, token), decoder, listener, PATIENCE_S)
        channel.send(message)
        loop.run_until(lambda: listener.answer or listener.reason, PATIENCE_S)
    finally:
        loop.close()
    if listener.answer is None:
        raise PolyrhythmError(f"job {job} did not answer: {listener.reason or f'silent for {PATIENCE_S:g} s'}")
    return listener.answer


class Listener:
    """Handler of the controller's connection."""

    def __init__(self) -> None:
        self.answer: Status | None = None
        self.reason = ""

    def received(self, message: Any) -> None:
        """The answer, or why there is none."""
        if isinstance(message, Status):
            self.answer = message
        elif isinstance(message, Rejected):
            self.reason = message.reason

    def place(self, message: Any, payload: Payload) -> memoryview:
        """A hub sends no numbers to a controller."""
        raise FrameError(f"the hub announced {payload.nbytes} bytes to a controller")

    def lost(self, reason: str) -> None:
        """The job has ended, or refuses."""
        self.reason = self.reason or reason
