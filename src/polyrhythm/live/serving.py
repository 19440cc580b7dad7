"""Answers requests of one application on one socket, within bounds that keep a crowd or a stalled reader away."""

import contextlib
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp


class Server(uvicorn.Server):
    """A server among others in one process, which handles the signals itself."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def answer(app: ASGIApp, sock: socket.socket, most: int) -> None:
    """Serve until cancelled."""
    config = uvicorn.Config(
        app,
        log_level="error",
        access_log=False,
        lifespan="off",
        ws="none",
        http="h11",
        limit_concurrency=most,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
        server_header=False,
    )
    await Server(config).serve(sockets=[sock])
