"""Answers requests of one application on one socket, within bounds that keep a crowd or a stalled reader away."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

WAIT_S = 10.0
"""How long a connection may take to say what it asks for, up to twice as long."""


class Connection(H11Protocol):
    """Ends if no whole request comes, so that connections that say nothing, or little by little, keep nobody away."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._before: object = self
        self._look()

    def connection_lost(self, exc: Exception | None) -> None:
        self._looking.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Nobody else answers a request whose body is none: h11 would raise, and uvicorn print a traceback."""
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True
            self.cycle.message_event.set()
            if self.cycle.response_started:
                self.transport.close()
                return
        super().send_400_response(msg)

    def _look(self) -> None:
        request = self.cycle
        awaits = request is None or request.response_complete or request.more_body
        if awaits and request is self._before:
            self.transport.close()
        self._before, self._looking = request, self.loop.call_later(WAIT_S, self._look)


class Server(uvicorn.Server):
    """A server among others in one process, which handles the signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def answer(app: ASGIApp, sock: socket.socket, most: int) -> None:
    """Serve until cancelled."""

    async def answering(scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientDisconnect):  # nobody is there to be answered
            await app(scope, receive, send)

    config = uvicorn.Config(
        answering,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        http=Connection,
        limit_concurrency=most,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    await Server(config).serve(sockets=[sock])
