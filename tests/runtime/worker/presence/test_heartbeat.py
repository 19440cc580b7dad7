"""What a worker makes of a coordinator that is silent."""

import queue
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from polyrhythm.core import Policy
from polyrhythm.errors import UsageError
from polyrhythm.runtime.wire.connection import Channel, listen
from polyrhythm.runtime.wire.event_loop import LoopThread
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import Acceptor
from polyrhythm.runtime.wire.protocol import Address, Cut, Heartbeat
from polyrhythm.runtime.wire.shard_protocol import Hello
from polyrhythm.runtime.worker.losses.figures import ScriptFigures
from polyrhythm.runtime.worker.presence import heartbeat
from polyrhythm.runtime.worker.presence.heartbeat import HeartbeatThread, Silence
from polyrhythm.runtime.worker.presence.route import Route


def test_who_is_heard_is_not_given_up() -> None:
    silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
    for second in range(1, 100):
        silence.hear(second - 0.5)
        assert not silence.is_too_long(second)


def test_silence_is_noticed_within_a_period() -> None:
    silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
    silence.hear(10.0)
    assert next(second for second in range(10, 20) if silence.is_too_long(second)) == 14


def test_a_process_that_was_stopped_itself_listens_once_more() -> None:
    silence = Silence(period_s=1.0, limit_s=3.0, now_s=0.0)
    assert not silence.is_too_long(1.0)
    assert [silence.is_too_long(second) for second in (101.0, 102.0, 103.0, 104.0, 105.0)] == [False] * 4 + [True]


class Dies:
    """A coordinator that is lost with the first heartbeat; the next one knows nothing of the rank."""

    def __init__(self, address: str) -> None:
        self.thread, self.met = LoopThread("server"), list[Channel]()
        decoder = msgspec.msgpack.Decoder(Heartbeat)
        Acceptor(self.thread.loop, listen(address), "job", "secret", decoder, self._admit)
        self.thread.start()

    def _admit(self, channel: Channel, hello: Hello) -> "Dies":
        self.met.append(channel)
        if len(self.met) > 1:
            raise UsageError(f"rank {hello.rank} is not part of this job")
        return self

    def received(self, message: Any) -> None:
        self.met[0].end("it is killed")

    def destination(self, message: Any, payload: Payload) -> memoryview:
        raise AssertionError

    def lost(self, reason: str) -> None:
        """It has been asked for."""


class Owner:
    """Of a heartbeat."""

    def __init__(self) -> None:
        self.reported, self.recovers = ScriptFigures(), True
        self.objection: Callable[[Policy[Any]], str] = heartbeat.no_objection
        self.told: queue.Queue[tuple[str, bool]] = queue.Queue()

    def lose(self, reason: str, final: bool, silent: bool = False) -> None:
        self.told.put((reason, final))

    def cut(self, message: Cut) -> None:
        raise AssertionError

    def ask_to_leave(self) -> None:
        raise AssertionError


def test_a_coordinator_that_refuses_is_asked_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "REFUSED_S", 0.3)
    monkeypatch.setattr(heartbeat, "AGAIN_S", 0.1)
    address, owner = Address("unix:@heartbeat-refused", "job", "secret"), Owner()
    server = Dies(address.coordinator)
    beats = HeartbeatThread(Route(address), 3, 1.0, 10.0, owner)
    told = [owner.told.get(timeout=30.0) for _ in range(2)]
    beats.stop()
    server.thread.stop()
    assert [final for _, final in told] == [False, True]
    assert "rank 3 is not part of this job" in told[1][0]
    assert 2 <= len(server.met) <= 6


def test_a_policy_is_refused_for_what_it_is_or_for_what_the_script_has_done() -> None:
    assert heartbeat.refusal_of("ssp:3", heartbeat.no_objection) == ""
    assert heartbeat.refusal_of("ssp:3", lambda policy: f"train.py:3: not {policy.spec}") == "train.py:3: not ssp:3"
    assert heartbeat.refusal_of("nonsense", heartbeat.no_objection).startswith("unknown policy 'nonsense'")
