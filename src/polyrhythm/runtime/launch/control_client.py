"""Talk to a running job from outside: ask how it is, switch its policy, remove a worker, end it."""

import re
import time
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from polyrhythm.errors import FrameError, PolyrhythmError, UnreachableError, UsageError
from polyrhythm.lines import say
from polyrhythm.runtime.wire.control_protocol import Absent, AskStatus, Status, TakeCheckpoint, ToControlled
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import join
from polyrhythm.runtime.wire.job_config import coordinator_address, runnable
from polyrhythm.runtime.wire.protocol import Address, SwitchTo
from polyrhythm.runtime.wire.setting_values import check_job_name
from polyrhythm.runtime.wire.shard_protocol import Hello, Rejected, Welcome

AGAIN_S = 0.1
"""A coordinator that has gone so soon after it was asked may have died: it is asked once more, as much later."""

ANSWER_S = 2.0
"""How long a coordinator that is to take a last checkpoint may take to answer at all."""

PATIENCE_S = 10.0
"""How long the coordinator may take to answer; as long as it waits for a silent worker by default."""


def at(job: str, coordinator: str = "", token: str = "") -> Address:
    """Where a job is steered from outside."""
    check_job_name(job, "JOB")
    return Address(coordinator or coordinator_address(job), job, token)


def jobs_here() -> list[str]:
    """Names of the jobs whose coordinators run on this host, as far as the system tells."""
    prefix = coordinator_address("").removeprefix("unix:")
    try:
        lines = Path("/proc/net/unix").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []
    sockets = {line.split()[-1] for line in lines if line}
    names = {name.removeprefix(prefix) for name in sockets if name.startswith(prefix)}
    return sorted(name for name in names if not re.fullmatch(r"peers-[0-9a-f]{16}", name))


def switch(address: Address, policy: str, by: str = "") -> Status:
    """Ask a job to change its policy; its state right after it has heard of it.

    Raises:
        UnreachableError: if the job does not answer.
    """
    return ask(address, SwitchTo(runnable(policy), by))


def status(address: Address, patience_s: float = PATIENCE_S) -> Status:
    """How a job is.

    Raises:
        UnreachableError: if the job does not answer.
    """
    return ask(address, AskStatus(), patience_s)


def absent(address: Address, rank: int, patience_s: float = PATIENCE_S, said: bool = False) -> Status:
    """Tell a job that the process of a rank has ended, in case it never joined, and whether it was said why.

    Raises:
        UnreachableError: if the job does not answer.
    """
    return ask(address, Absent(rank, said), patience_s)


def take_checkpoint(address: Address, patience_s: float, by: str = "", last: bool = False) -> Status:
    """Have a job take a checkpoint, and wait until it is kept; `last` if whoever asks ends after that.

    Raises:
        UnreachableError: if that takes longer.
        UsageError: if it keeps none, could not, or has ended before.
    """
    state = ask(address, TakeCheckpoint(by, last), patience_s)
    if state.ended:
        raise UsageError(f"job {address.job} has ended before a checkpoint was kept: {state.ended}")
    return state


def keep_last(address: Address, limit_s: float) -> None:
    """Have a last checkpoint taken before workers leave, if the job is under way and keeps any."""
    with suppress(PolyrhythmError):  # such as: it keeps none
        status(address, ANSWER_S)
        begun_s = time.monotonic()
        try:
            take_checkpoint(address, limit_s, last=True)
        except UnreachableError as error:
            if time.monotonic() >= begun_s + limit_s:
                say(f"no checkpoint was kept within {limit_s:g} s; workers end without")
            else:
                status(address, ANSWER_S)  # a job that is over has nothing to keep
                say(f"no last checkpoint was kept: {error}; workers end without")


def ask(address: Address, message: ToControlled, patience_s: float = PATIENCE_S) -> Status:
    """Say one thing to a job.

    Raises:
        UnreachableError: if it does not answer.
    """
    begun_s = time.monotonic()
    try:
        return ask_once(address, message, patience_s)
    except UnreachableError:
        if address.standby:
            return ask_once(msgspec.structs.replace(address, coordinator=address.standby), message, patience_s)
        if time.monotonic() > begun_s + AGAIN_S:
            raise
    time.sleep(AGAIN_S)  # its coordinator may just have died, and another one takes its place
    return ask_once(address, message, patience_s)


def ask_once(address: Address, message: ToControlled, patience_s: float) -> Status:
    with Controller(address, patience_s) as controller:
        return controller.ask(message)


class Controller:
    """A connection to a job, to ask again and again. A job that ends says so by itself, in a last `Status`.

    Args:
        address: of its coordinator.
        patience_s: how long it may take to answer.

    Raises:
        UnreachableError: if it does not answer.
    """

    def __init__(self, address: Address, patience_s: float = PATIENCE_S) -> None:
        self._job, self._patience_s = address.job, patience_s
        self._loop, self._handler = Loop(spin_s=0.0), ControlHandler()
        decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Welcome | Rejected | Status)
        meeting = self._loop, address.coordinator, Hello(address.job, "control", 0), decoder, self._handler
        try:
            self._channel = join(*meeting, patience_s, token=address.token)
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> "Controller":
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        self._loop.close()

    def ask(self, message: ToControlled) -> Status:
        """The answer, or the job's last word if it has said that already.

        Raises:
            UnreachableError: if it does not answer.
        """
        handler = self._handler
        self._loop.step(0.0)
        if not (handler.answers or handler.reason):
            self._channel.send(message)
            self._loop.run_until(lambda: handler.answers or handler.reason, self._patience_s)
        if handler.answers:
            return handler.answers.popleft()
        if handler.refused:
            reason, handler.reason, handler.refused = handler.reason, "", False
            raise UsageError(f"job {self._job} refuses: {reason}")
        why = handler.reason or f"silent for {self._patience_s:g} s"
        raise UnreachableError(f"job {self._job} did not answer: {why}")


class ControlHandler:
    def __init__(self) -> None:
        self.answers: deque[Status] = deque()
        self.reason = ""
        self.refused = False

    def received(self, message: Any) -> None:
        if isinstance(message, Status):
            self.answers.append(message)
        elif isinstance(message, Rejected):
            self.reason, self.refused = message.reason, True

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise FrameError(f"the coordinator announced {payload.nbytes} bytes to a controller")

    def lost(self, reason: str) -> None:
        self.reason = self.reason or reason
