"""The page as a web application: how the job is, and what can be done to it."""

import re
import time
from collections.abc import Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.live.gate import Gate
from polyrhythm.live.metrics import MEDIA_TYPE, exposition
from polyrhythm.live.pages import asset, live_page, saved_page
from polyrhythm.live.reader import PERIOD_S, Reader
from polyrhythm.policies import BUILT_IN
from polyrhythm.policies._lib.completion import completions
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.control_protocol import DrainWorker, EndJob, RemoveWorker
from polyrhythm.runtime.wire.protocol import MOST_SPEC, Address

FROM_FILES = re.compile(r"/|\\|\.py\b")
"""In a spec: a policy that stands in a file, which is code."""


class SwitchRequest(msgspec.Struct, forbid_unknown_fields=True):
    policy: str


class RemoveRequest(msgspec.Struct, forbid_unknown_fields=True):
    rank: int


class EndRequest(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Page:
    """Answers the requests of a page."""

    def __init__(self, reader: Reader, address: Address) -> None:
        self._reader, self._address = reader, address

    def routes(self) -> list[Route]:
        return [
            Route("/", self.index),
            Route("/page.css", self.style),
            Route("/page.js", self.script),
            Route("/state", self.state),
            Route("/saved", self.saved),
            Route("/switch", self.switch, methods=["POST"]),
            Route("/complete", self.complete),
            Route("/drain", self.drain, methods=["POST"]),
            Route("/remove", self.remove, methods=["POST"]),
            Route("/end", self.end, methods=["POST"]),
        ]

    async def index(self, request: Request) -> Response:
        return Response(live_page(self._address.job), media_type="text/html")

    async def style(self, request: Request) -> Response:
        return Response(asset("page.css"), media_type="text/css")

    async def script(self, request: Request) -> Response:
        return Response(asset("page.js"), media_type="text/javascript")

    async def state(self, request: Request) -> Response:
        """How the job is, and the frames after that of a number."""
        after = request.query_params.get("after", "0")
        view, frames = self._reader.after(int(after) if after.isdecimal() else 0)
        age_s = time.time() - self._reader.latest[1]
        return as_json({"view": view, "frames": frames, "period_s": PERIOD_S, "age_s": age_s})

    async def saved(self, request: Request) -> Response:
        """The page as one file."""
        view, frames = self._reader.after(0)
        page = await run_in_threadpool(saved_page, self._address.job, view, frames)
        headers = {"Content-Disposition": 'attachment; filename="polyrhythm-job.html"'}
        return Response(page, media_type="text/html", headers=headers)

    async def switch(self, request: Request) -> Response:
        def act(asked: SwitchRequest, by: str) -> str:
            if FROM_FILES.search(asked.policy):
                raise UsageError("a policy that stands in a file can be switched to with polyrhythm ctl only")
            state = steer.switch(self._address, asked.policy, by)
            return f"switching to {state.switching_to}" if state.switching_to else f"policy {state.policy} holds"

        return await self._act(request, SwitchRequest, act)

    async def remove(self, request: Request) -> Response:
        def act(asked: RemoveRequest, by: str) -> str:
            steer.ask(self._address, RemoveWorker(asked.rank, by))
            return f"rank {asked.rank} is removed"

        return await self._act(request, RemoveRequest, act)

    async def drain(self, request: Request) -> Response:
        def act(asked: RemoveRequest, by: str) -> str:
            steer.ask(self._address, DrainWorker(asked.rank, by))
            return f"rank {asked.rank} leaves when its step is complete"

        return await self._act(request, RemoveRequest, act)

    async def complete(self, request: Request) -> Response:
        return as_json(completions(request.query_params.get("begun", "")[:MOST_SPEC], BUILT_IN))

    async def end(self, request: Request) -> Response:
        def act(_: EndRequest, by: str) -> str:
            steer.ask(self._address, EndJob(by))
            return "the job ends"

        return await self._act(request, EndRequest, act)

    async def _act(self, request: Request, kind: type[Any], act: Callable[[Any, str], str]) -> Response:
        """Read what is asked, do it, and say in one line what came of it."""
        by = f"the page at {request.client.host if request.client else 'an unknown address'}"
        try:
            asked = msgspec.json.decode(await request.body(), type=kind)
            return as_json({"said": await run_in_threadpool(act, asked, by)})
        except msgspec.MsgspecError as error:
            return as_json({"error": f"the request cannot be read: {error}"}, 400)
        except PolyrhythmError as error:
            return as_json({"error": str(error)}, 400 if isinstance(error, UsageError) else 503)


def page_app(reader: Reader, address: Address, key: str, host: str) -> ASGIApp:
    return Gate(Starlette(routes=Page(reader, address).routes()), key, host)


def metrics_app(reader: Reader) -> ASGIApp:
    """What Prometheus reads; numbers only, so without a key."""

    async def metrics(_: Request) -> Response:
        return Response(exposition(*reader.latest), media_type=MEDIA_TYPE)

    async def elsewhere(_: Request) -> Response:
        return PlainTextResponse("The metrics are at /metrics.\n", 404)

    return Starlette(routes=[Route("/metrics", metrics), Route("/", elsewhere)])


def as_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")
