"""Connections with TLS between a server and who joins it, and what happens if only one of them has it."""

import errno
import random
import select
import socket
import ssl
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from polyrhythm.errors import PolyrhythmError, UnreachableError
from polyrhythm.runtime.wire.connection import Channel, address_of, connect, listen
from polyrhythm.runtime.wire.event_loop import Loop, LoopThread
from polyrhythm.runtime.wire.frames import Payload
from polyrhythm.runtime.wire.handshake import Acceptor, join
from polyrhythm.runtime.wire.shard_protocol import Hello, Pull, PushGradient
from polyrhythm.runtime.wire.tls.files import CA, CERT, KEY, TlsFiles
from polyrhythm.runtime.wire.tls.sockets import TlsSocket
from polyrhythm.runtime.wire.tls.wrapping import called
from tests.runtime.wire.test_connection import DECODER, Log
from tests.runtime.wire.tls.certificates import make_files

LIMIT_S = 30.0
HELLO = Hello("job", "worker", 3)


def carry(monkeypatch: pytest.MonkeyPatch, files: TlsFiles) -> None:
    """What this process has from now on."""
    for name, path in zip((CERT, KEY, CA), files, strict=True):
        monkeypatch.setenv(name, path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("certificates")


@pytest.fixture(scope="module")
def files(folder: Path) -> TlsFiles:
    return make_files(folder)


class Echo:
    """Sends each message and each payload back, from memory of its own."""

    def __init__(self, channel: Channel) -> None:
        self._channel, self._payload = channel, bytearray()

    def received(self, message: Any) -> None:
        if isinstance(message, PushGradient):
            self._channel.send(message, memoryview(self._payload), Payload("uint8", len(self._payload)))
        else:
            self._channel.send(message)

    def destination(self, message: Any, payload: Payload) -> memoryview:
        self._payload = bytearray(payload.nbytes)
        return memoryview(self._payload)

    def lost(self, reason: str) -> None:
        """Nobody asks."""


class Server:
    """In a thread, as the handshake of a client waits for it."""

    def __init__(self) -> None:
        self.thread = LoopThread("server")
        listener = listen("tcp:127.0.0.1:0")
        self.address = address_of(listener)
        Acceptor(self.thread.loop, listener, "job", "secret", DECODER, lambda channel, _: Echo(channel))
        self.thread.start()


@pytest.fixture
def loop() -> Iterator[Loop]:
    made = Loop()
    yield made
    made.close()


@pytest.fixture
def server(files: TlsFiles, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    carry(monkeypatch, files)
    made = Server()
    yield made
    made.thread.stop()


@pytest.mark.parametrize("seed", range(4))
def test_all_sizes_arrive_whole_in_both_directions_at_once(server: Server, loop: Loop, seed: int) -> None:
    """Up to some records of TLS and more than a socket holds, so that both ends are interrupted anywhere."""
    draw, log = random.Random(seed), Log(limit=2**24)
    channel = join(loop, server.address, HELLO, DECODER, log, token="secret")
    assert isinstance(channel.socket, TlsSocket)
    sizes = [draw.choice([1, 16383, 16384, 16385, 100_000, 3_000_000]) + draw.randrange(3) for _ in range(20)]
    sent = [draw.randbytes(size) for size in sizes]
    for number, data in enumerate(sent):
        channel.send(Pull(number))
        channel.send(PushGradient(number), memoryview(data), Payload("uint8", len(data)))
    assert loop.run_until(lambda: len(log.messages) == 2 * len(sent), LIMIT_S)
    assert [bytes(payload) for payload in log.payloads] == sent


def test_who_has_another_authority_does_not_believe_the_server(
    server: Server, loop: Loop, folder: Path, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, files._replace(ca=make_files(folder, "other", authority="others").ca))
    with pytest.raises(PolyrhythmError, match=r"no TLS with tcp:.*: unable to get local issuer certificate; give"):
        join(loop, server.address, HELLO, DECODER, Log(), token="secret")


def test_who_has_none_is_told_what_to_give(
    server: Server, loop: Loop, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, files._replace(ca=""))
    with pytest.raises(PolyrhythmError, match=r"closed the connection; if the job has TLS, give --tls-ca"):
        join(loop, server.address, HELLO, DECODER, Log(), token="secret")


def test_a_server_without_is_not_believed(files: TlsFiles, monkeypatch: pytest.MonkeyPatch, loop: Loop) -> None:
    server = Server()
    carry(monkeypatch, TlsFiles(ca=files.ca))  # the server is in the same process
    with pytest.raises(PolyrhythmError, match=r"no TLS with tcp:"):
        join(loop, server.address, HELLO, DECODER, Log(), token="secret")
    server.thread.stop()


def test_the_token_is_still_needed(server: Server, loop: Loop) -> None:
    with pytest.raises(PolyrhythmError, match="the token is wrong"):
        join(loop, server.address, HELLO, DECODER, Log(), token="guessed")


def test_whose_proof_is_for_another_certificate_does_not_get_in(
    server: Server, loop: Loop, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As that of a client whose server is somebody in between, with a certificate of the same authority."""
    between = make_files(folder, "between")
    shown = ssl.PEM_cert_to_DER_cert(Path(between.cert).read_text("ascii"))
    monkeypatch.setattr(TlsSocket, "getpeercert", lambda *_: shown)
    with pytest.raises(PolyrhythmError, match="the token is wrong"):
        join(loop, server.address, HELLO, DECODER, Log(), token="secret")


def test_strangers_cost_the_server_nothing(server: Server, loop: Loop) -> None:
    """Neither who says what is no TLS, nor who says nothing, nor who goes in the middle of the handshake."""
    place = ("127.0.0.1", int(server.address.rpartition(":")[2]))
    strangers = [socket.create_connection(place) for _ in range(3)]
    strangers[0].sendall(b"GET / HTTP/1.0\r\n\r\n" * 100)
    strangers[1].sendall(b"\x16\x03\x01\x02\x00\x01")
    strangers[1].close()
    log = Log()
    join(loop, server.address, HELLO, DECODER, log, token="secret").send(Pull(7))
    assert loop.run_until(lambda: log.messages == [Pull(7)], LIMIT_S)
    strangers[0].settimeout(LIMIT_S)
    with suppress(ConnectionResetError):
        while strangers[0].recv(4096):
            """What is said to it before its end."""
    for each in strangers:
        each.close()


def test_a_channel_that_is_given_up_ends(server: Server, loop: Loop) -> None:
    log = Log()
    channel = join(loop, server.address, HELLO, DECODER, log, token="secret")
    channel.give_up("that is enough")
    assert loop.run_until(lambda: log.reasons, LIMIT_S)
    assert log.reasons == ["that is enough"]


@pytest.mark.parametrize("said", [b"", b"\x16\x03"])
def test_a_server_that_goes_in_the_middle_of_the_handshake_may_be_called_again(
    said: bytes, files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a coordinator that is killed: its end is a reset, of which `connect` may hear, or that of its words."""
    carry(monkeypatch, files)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        sock, _ = listener.accept()
        sock.sendall(said)
        if said:
            sock.recv(4096)
        else:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()

    thread = threading.Thread(target=serve)
    thread.start()
    with pytest.raises(UnreachableError, match=r"no TLS with tcp:|cannot connect to tcp:.* reset by peer"):
        connect(address_of(listener), LIMIT_S)
    thread.join()
    listener.close()


def test_a_connection_that_was_reset_before_the_handshake_is_no_connection(
    files: TlsFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    carry(monkeypatch, files)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        calling = socket.create_connection(listener.getsockname())
        sock, _ = listener.accept()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
        reset = select.poll()
        reset.register(calling, select.POLLIN)
        assert reset.poll()
        assert calling.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == errno.ECONNRESET
        with pytest.raises(UnreachableError, match="no TLS with the coordinator"):
            called(calling, "the coordinator")


def test_a_call_outside_of_a_loop(server: Server) -> None:
    with connect(server.address, LIMIT_S) as sock:
        assert isinstance(sock, TlsSocket)
