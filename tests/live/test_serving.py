"""Which connections are kept."""

import asyncio
import socket

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from polyrhythm.live import serving

LIMIT_S = 30.0
ASKED = b"GET / HTTP/1.1\r\nHost: here\r\n\r\n"
BEGUN = b"POST / HTTP/1.1\r\nHost: here\r\nContent-Length: 9\r\n\r\n{"


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse((await request.body()).decode() or "nothing")


APP = Starlette(routes=[Route("/", echo, methods=["GET", "POST"])])


async def ended(said: bytes, port: int) -> bytes:
    """What comes until the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    try:
        return await asyncio.wait_for(reader.read(), LIMIT_S)
    finally:
        writer.close()


async def crowd(said: bytes) -> list[bytes]:
    """As many connections as are kept, and what is answered to another one after them."""
    sock = socket.create_server(("127.0.0.1", 0))
    port = sock.getsockname()[1]
    server = asyncio.create_task(serving.answer(APP, sock, most=4))
    try:
        kept = await asyncio.gather(*(ended(said, port) for _ in range(3)))
        return [*kept, await ended(ASKED, port)]
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


@pytest.mark.parametrize("said", [b"", b"GET / HT", ASKED[:-2], BEGUN])
def test_who_asks_for_nothing_is_not_kept(monkeypatch: pytest.MonkeyPatch, said: bytes) -> None:
    monkeypatch.setattr(serving, "WAIT_S", 0.1)
    *kept, answer = asyncio.run(crowd(said))
    assert not any(b"200 OK" in text for text in kept)
    assert answer.startswith(b"HTTP/1.1 200 OK")


def test_who_asks_again_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "WAIT_S", 0.1)
    kept = asyncio.run(crowd(ASKED + ASKED))[0]
    assert kept.count(b"200 OK") == 2


CHUNKED = b"POST / HTTP/1.1\r\nHost: here\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("said", [CHUNKED + b"no chunk\r\n", BEGUN + b"}\r\n" + ASKED, b"no request\r\n\r\n"])
def test_a_body_that_is_none_is_no_traceback(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], said: bytes
) -> None:
    monkeypatch.setattr(serving, "WAIT_S", 0.1)
    *kept, answer = asyncio.run(crowd(said))
    assert all(b"400 Bad Request" in text for text in kept)
    assert answer.startswith(b"HTTP/1.1 200 OK")
    assert "Traceback" not in capfd.readouterr().err
