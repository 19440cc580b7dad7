"""Who is let in."""

import socket
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import UnreachableError, UsageError
from polyrhythm.runtime.wire.connection import Channel, address_of, connect, listen
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import MAX_HELLO, Payload, encode
from polyrhythm.runtime.wire.handshake import PATIENCE_S, Acceptor, join
from polyrhythm.runtime.wire.shard_protocol import Hello, Pull, PushGradient, Rejected, Welcome
from tests.runtime.wire.test_connection import Log

SERVER: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(Hello | PushGradient | Pull)
CLIENT: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(Welcome | Rejected | Pull)
HELLO = Hello("job", "worker", 3, "secret")


class House:
    """A acceptor with a token; rank 13 is refused by the one who admits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.loop = Loop(clock=lambda: self.now)
        self.log = Log()
        self.guests: list[Hello] = []
        self.channels: list[Channel] = []
        listener = listen("tcp:127.0.0.1:0")
        self.address = address_of(listener)
        Acceptor(self.loop, listener, "job", "secret", SERVER, self.admit)

    def admit(self, channel: Channel, hello: Hello) -> Log:
        if hello.rank == 13:
            raise UsageError("rank 13 is already part of this job")
        self.guests.append(hello)
        self.channels.append(channel)
        return self.log

    def raw(self) -> socket.socket:
        return connect(self.address, 5.0)

    def closes(self, sock: socket.socket) -> bool:
        """Step until the acceptor closes this connection, and nobody was let in."""
        sock.setblocking(False)
        for _ in range(100):
            self.loop.step(0.01)
            try:
                if sock.recv(100) == b"":
                    return not self.guests
            except BlockingIOError:
                continue
            except ConnectionResetError:
                return not self.guests
        return False


@pytest.fixture
def house() -> Iterator[House]:
    house = House()
    yield house
    house.loop.close()


def test_the_right_hello_is_welcome_and_both_sides_can_talk(house: House) -> None:
    log = Log()
    channel = join(house.loop, house.address, HELLO, CLIENT, log)
    assert house.guests == [HELLO]
    channel.send(Pull(1))
    house.channels[0].send(Pull(2))
    assert house.loop.run_until(lambda: house.log.messages and log.messages, 5.0)
    channel.close()
    assert house.loop.run_until(lambda: house.log.reasons, 5.0)
    assert house.log.reasons == ["worker 3 closed the connection"]


@pytest.mark.parametrize(
    ("hello", "reason"),
    [
        (Hello("job", "worker", 3, "wrong"), "the token is wrong; use the token of the job"),
        (Hello("job", "worker", 3), "the token is wrong"),
        (Hello("other", "worker", 3, "secret"), "this is job 'job', not 'other'"),
        (Hello("job", "worker", 13, "secret"), "rank 13 is already part of this job"),
    ],
)
def test_a_wrong_hello_is_refused_with_the_reason(house: House, hello: Hello, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"worker {hello.rank} cannot join job '{hello.job}' at .*: {reason}"):
        join(house.loop, house.address, hello, CLIENT, Log())
    assert house.guests == []


def test_a_foreign_peer_is_turned_away(house: House) -> None:
    sock = house.raw()
    sock.send(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert house.closes(sock)


def test_nothing_but_hello_is_heard_before_it(house: House) -> None:
    sock = house.raw()
    sock.send(bytes(encode(Pull(1))))
    assert house.closes(sock)


def test_no_tensor_is_taken_before_the_handshake(house: House) -> None:
    sock = house.raw()
    sock.send(bytes(encode(PushGradient(1), Payload("float32", 2**20))))
    assert house.closes(sock)


def test_a_long_hello_is_not_read(house: House) -> None:
    sock = house.raw()
    sock.send(bytes(encode(Hello("x" * MAX_HELLO, "worker", 0, "secret"))))
    assert house.closes(sock)


def test_who_says_nothing_is_shown_the_door(house: House) -> None:
    sock = house.raw()
    house.loop.step(1.0)
    house.now = PATIENCE_S + 1
    assert house.closes(sock)


def test_messages_right_behind_hello_are_not_lost(house: House) -> None:
    sock = house.raw()
    sock.send(bytes(encode(HELLO)) + bytes(encode(Pull(7))))
    assert house.loop.run_until(lambda: house.log.messages, 5.0)
    assert house.log.messages == [Pull(7)]
    sock.close()


def test_a_server_that_says_nothing_is_given_up() -> None:
    listener = listen("unix:@polyrhythm-test-silent")
    loop = Loop()
    with pytest.raises(UnreachableError, match=r"no answer within 0\.01 s"):
        join(loop, "unix:@polyrhythm-test-silent", HELLO, CLIENT, Log(), timeout_s=0.01)
    loop.close()
    listener.close()
