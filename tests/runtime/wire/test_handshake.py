"""Who is let in."""

import os
import resource
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from typing import Any

import msgspec
import pytest

from polyrhythm.errors import UnreachableError, UsageError
from polyrhythm.runtime.wire import credentials
from polyrhythm.runtime.wire.connection import Channel, address_of, connect, listen
from polyrhythm.runtime.wire.credentials import make_nonce, prove
from polyrhythm.runtime.wire.event_loop import Loop
from polyrhythm.runtime.wire.frames import ENCODER, MAX_HELLO, FrameParser, Payload, encode
from polyrhythm.runtime.wire.handshake import MOST_NEWCOMERS, PATIENCE_S, Acceptor, join
from polyrhythm.runtime.wire.shard_protocol import Challenge, Hello, Proof, Pull, PushGradient, Rejected, Welcome
from tests.descriptors import none_left
from tests.runtime.wire.test_connection import Log

SERVER: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(PushGradient | Pull)
CLIENT: "msgspec.msgpack.Decoder[Any]" = msgspec.msgpack.Decoder(Rejected | Pull)
HELLO = Hello("job", "worker", 3)
NAMES = count()


class House:
    """An acceptor with a token; rank 13 is refused by the one who admits."""

    def __init__(self, carrier: str = "tcp") -> None:
        self.now = 0.0
        self.loop = Loop(clock=lambda: self.now)
        self.log = Log()
        self.guests: list[Hello] = []
        self.channels: list[Channel] = []
        listener = listen(
            "tcp:127.0.0.1:0" if carrier == "tcp" else f"unix:@polyrhythm-test-{os.getpid()}-{next(NAMES)}"
        )
        self.address = address_of(listener)
        self.crowds: list[str] = []
        Acceptor(self.loop, listener, "job", "secret", SERVER, self.admit, self.crowds.append)

    def admit(self, channel: Channel, hello: Hello) -> Log:
        if hello.rank == 13:
            raise UsageError("rank 13 is already part of this job")
        self.guests.append(msgspec.structs.replace(hello, nonce=b""))
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


def test_who_cannot_be_let_in_for_want_of_descriptors_is_told_so(house: House) -> None:
    """And when there are some again, all others are let in."""
    first, second = house.raw(), house.raw()
    with none_left() as held:
        most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        house.loop.step(1.0)
        house.loop.step(1.0)
        os.close(held.pop())
        os.close(held.pop())
    for sock in (first, second):
        said = sock.recv(4096).decode(errors="replace")
        assert f"too many open files: a process has at most {most} here; raise ulimit -n" in said
        assert sock.recv(4096) == b""
    assert len(house.crowds) == 2
    assert "too many open files" in house.crowds[0]
    join(house.loop, house.address, HELLO, CLIENT, Log(), token="secret")
    assert house.guests == [HELLO]


def test_the_right_hello_is_welcome_and_both_sides_can_talk(house: House) -> None:
    log = Log()
    channel = join(house.loop, house.address, HELLO, CLIENT, log, token="secret")
    assert house.guests == [HELLO]
    channel.send(Pull(1))
    house.channels[0].send(Pull(2))
    assert house.loop.run_until(lambda: house.log.messages and log.messages, 5.0)
    channel.close()
    assert house.loop.run_until(lambda: house.log.reasons, 5.0)
    assert house.log.reasons == ["worker 3 closed the connection"]


@pytest.mark.parametrize(
    ("hello", "token", "reason"),
    [
        (HELLO, "wrong", "the token is wrong; use the token of the job"),
        (HELLO, "", "over TCP the token of the job is needed; set POLYRHYTHM_TOKEN"),
        (Hello("other", "worker", 3), "secret", "this is job 'job', not 'other'"),
        (Hello("job", "worker", 13), "secret", "rank 13 is already part of this job"),
    ],
)
def test_a_wrong_hello_is_refused_with_the_reason(house: House, hello: Hello, token: str, reason: str) -> None:
    with pytest.raises(UsageError, match=rf"worker {hello.rank} cannot join job '{hello.job}' at .*: {reason}"):
        join(house.loop, house.address, hello, CLIENT, Log(), token=token)
    assert house.guests == []


def test_who_only_asks_or_steers_is_refused_without_our_word_for_that_connection(house: House) -> None:
    with pytest.raises(UsageError, match=r"^cannot reach job 'job' at .*: the token is wrong; .*POLYRHYTHM_TOKEN"):
        join(house.loop, house.address, Hello("job", "control", 0), CLIENT, Log(), token="wrong")


def test_on_this_host_the_kernel_vouches_for_the_same_user() -> None:
    house = House("unix")
    join(house.loop, house.address, HELLO, CLIENT, Log())
    assert house.guests == [HELLO]
    house.loop.close()


@pytest.mark.parametrize("stranger", ["client", "server"])
def test_another_user_is_turned_away(stranger: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Abstract names have no permissions: anybody may connect to one, or have taken it."""
    house, asked = House("unix"), []

    def other(sock: socket.socket) -> int:
        asked.append(sock)
        return os.geteuid() + 7 if (len(asked) == 1) == (stranger == "server") else os.geteuid()

    monkeypatch.setattr(credentials, "peer_user", other)
    with pytest.raises(UsageError, match=r"belongs to user \d+, not to \d+; run both as one user"):
        join(house.loop, house.address, HELLO, CLIENT, Log())
    assert house.guests == []
    house.loop.close()


def test_what_was_overheard_opens_nothing(house: House) -> None:
    """A Hello and its Proof, sent once more: the number of the server is another one."""
    hello, first, replayed = msgspec.structs.replace(HELLO, nonce=make_nonce()), house.raw(), house.raw()
    proof = Proof(prove("secret", "join", ENCODER.encode(hello), challenge(house, first, hello), b""))
    challenge(house, replayed, hello)
    replayed.send(encode(proof))
    assert house.closes(replayed)
    first.send(encode(proof))
    assert house.loop.run_until(lambda: house.guests, 5.0)
    first.close()


def challenge(house: House, sock: socket.socket, hello: Hello) -> bytes:
    """Say hello; the number that the server answers with."""
    sock.send(encode(hello))
    sock.setblocking(False)
    data = b""
    while not data:
        house.loop.step(0.01)
        with suppress(BlockingIOError):
            data = sock.recv(4096)
    (message,) = FrameParser("server", msgspec.msgpack.Decoder(Challenge), refuse).feed(data)
    nonce: bytes = message.nonce
    return nonce


def refuse(message: Any, payload: Payload) -> memoryview:
    raise AssertionError


def test_the_token_is_never_sent_nor_a_server_trusted_that_does_not_know_it() -> None:
    """One that lets everybody in, to be handed gradients."""
    loop, said, channels = Loop(), Log(), list[Channel]()
    listener = listen("tcp:127.0.0.1:0")
    decoder: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Hello | Proof)

    class Impostor(Log):
        def received(self, message: Any) -> None:
            said.messages.append(message)
            channels[0].send(Challenge(b"1") if isinstance(message, Hello) else Welcome(bytes(32)))

    def accept(sock: socket.socket) -> None:
        channels.append(Channel(sock, decoder, "victim"))
        loop.add(channels[0], Impostor())

    loop.listen(listener, accept)
    with pytest.raises(UsageError, match="the token is wrong"):
        join(loop, address_of(listener), HELLO, CLIENT, Log(), token="secret")
    assert [type(message) for message in said.messages] == [Hello, Proof]
    assert b"secret" not in b"".join(map(encode, said.messages))
    loop.close()


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
    sock.send(encode(Hello("x" * MAX_HELLO, "worker", 0)))
    assert house.closes(sock)


def test_who_says_nothing_is_shown_the_door(house: House) -> None:
    sock = house.raw()
    house.loop.step(1.0)
    house.now = PATIENCE_S + 1
    assert house.closes(sock)


def test_who_proves_nothing_is_shown_the_door(house: House) -> None:
    sock = house.raw()
    challenge(house, sock, HELLO)
    house.now = PATIENCE_S + 1
    assert house.closes(sock)


def test_a_second_hello_ends_the_connection(house: House) -> None:
    channel = join(house.loop, house.address, HELLO, CLIENT, Log(), token="secret")
    channel.send(HELLO)
    assert house.loop.run_until(lambda: house.log.reasons, 5.0)
    assert "sent a message that cannot be read" in house.log.reasons[0]
    sock = house.raw()
    house.guests.clear()
    challenge(house, sock, HELLO)
    sock.send(encode(HELLO))
    assert house.closes(sock)


def test_messages_right_behind_hello_are_not_lost() -> None:
    house = House("unix")
    sock = house.raw()
    sock.send(encode(HELLO) + encode(Pull(7)))
    assert house.loop.run_until(lambda: house.log.messages, 5.0)
    assert house.log.messages == [Pull(7)]
    sock.close()
    house.loop.close()


def test_of_those_who_say_nothing_the_oldest_are_dropped(house: House) -> None:
    """However many there are, little memory is taken, and who has something to say is heard."""
    socks = [house.raw() for _ in range(3 * MOST_NEWCOMERS)]
    channel = join(house.loop, house.address, HELLO, CLIENT, Log(), token="secret")
    gone = [is_closed(sock) for sock in socks]
    assert gone == sorted(gone, reverse=True)
    assert gone.count(False) <= MOST_NEWCOMERS
    waiting = [each for each in house.loop._channels.values() if each not in (channel, house.channels[0])]
    assert len(waiting) <= MOST_NEWCOMERS
    assert all(len(each.parser.buffer()) < 2 * MAX_HELLO for each in waiting)
    for sock in socks:
        sock.close()


def is_closed(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False


def test_a_server_that_says_nothing_is_given_up() -> None:
    listener = listen("unix:@polyrhythm-test-silent")
    loop = Loop()
    with pytest.raises(UnreachableError, match=r"no answer within 0\.01 s"):
        join(loop, "unix:@polyrhythm-test-silent", HELLO, CLIENT, Log(), timeout_s=0.01)
    loop.close()
    listener.close()
