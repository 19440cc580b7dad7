"""Long work as a page: served by a thread of the process that does it, to whoever knows the key."""

import asyncio
import contextlib
import secrets
import socket
import threading
import time

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from polyrhythm.live.app import as_json, asset_route
from polyrhythm.live.gate import Gate
from polyrhythm.live.pages import work_page
from polyrhythm.live.serving import answer
from polyrhythm.live.work.board import WorkBoard

PERIOD_S = 0.5
"""Time between two looks of a page."""

LINGER_S = 2 * PERIOD_S
"""How long a page that is open can still be asked for its last state."""

MOST_REQUESTS = 16

HOST = "127.0.0.1"


class WorkPage:
    """Answers on a free port of this host, from `start` to `stop`."""

    def __init__(self, board: WorkBoard) -> None:
        self._board, self._key = board, secrets.token_urlsafe(16)
        self._socket = socket.create_server((HOST, 0))
        self._loop = asyncio.new_event_loop()
        self._serving: asyncio.Task[None] | None = None
        self._asked_s = 0.0
        self._thread = threading.Thread(target=self._run, name="polyrhythm-page", daemon=True)

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self._socket.getsockname()[1]}/{self._key}/"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Let a page that is open see the end, and answer no more."""
        if time.monotonic() - self._asked_s < 4 * PERIOD_S:
            time.sleep(LINGER_S)
        self._loop.call_soon_threadsafe(self._cancel)
        self._thread.join(5.0)
        self._socket.close()

    def _cancel(self) -> None:
        if self._serving is not None:
            self._serving.cancel()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        routes = [
            Route("/", self._index),
            *map(asset_route, ("page.css", "work.js")),
            Route("/state", self._state),
            Route("/saved", self._saved),
        ]
        self._serving = self._loop.create_task(
            answer(Gate(Starlette(routes=routes), self._key, HOST), self._socket, MOST_REQUESTS)
        )
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._serving)
        self._loop.close()

    async def _index(self, request: Request) -> Response:
        return Response(work_page(self._board.view(), False), media_type="text/html")

    async def _state(self, request: Request) -> Response:
        self._asked_s = time.monotonic()
        return as_json({"view": self._board.view(), "period_s": PERIOD_S})

    async def _saved(self, request: Request) -> Response:
        headers = {"Content-Disposition": 'attachment; filename="polyrhythm-work.html"'}
        return Response(work_page(self._board.view(), True), media_type="text/html", headers=headers)
