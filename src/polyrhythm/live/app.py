"""The page as a web application: how the job is, and what can be done to it."""

import re
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from polyrhythm.errors import PolyrhythmError, UsageError
from polyrhythm.live.gate import Gate, OwnSite, WithToken
from polyrhythm.live.metrics import MEDIA_TYPE, exposition
from polyrhythm.live.pages import asset, live_page, saved_page
from polyrhythm.live.peers import is_own_user
from polyrhythm.live.reader import PERIOD_S, Reader
from polyrhythm.policies import BUILT_IN, parse_loaded_policy
from polyrhythm.policies._lib.completion import completions
from polyrhythm.runtime.launch import control_client as steer
from polyrhythm.runtime.wire.connection import is_loopback
from polyrhythm.runtime.wire.control_protocol import DrainWorker, EndJob, RemoveWorker
from polyrhythm.runtime.wire.protocol import MOST_SPEC, Address
from polyrhythm.runtime.wire.shard_protocol import Rank

MOST_DIGITS = 18
"""Of the number of a frame."""

FROM_FILES = re.compile(r"/|\\|\.[^\W\d]\w")
"""In a spec: a policy that stands in a file or a module, which is code."""


class SwitchRequest(msgspec.Struct, forbid_unknown_fields=True):
    policy: str

    def act(self, address: Address, by: str) -> str:
        if FROM_FILES.search(self.policy):
            raise UsageError("a policy that stands in a file or a module can be switched to with polyrhythm ctl only")
        parse_loaded_policy(self.policy)  # so that no other spelling runs code here
        state = steer.switch(address, self.policy, by)
        return f"switching to {state.switching_to}" if state.switching_to else f"policy {state.policy} holds"


class DrainRequest(msgspec.Struct, forbid_unknown_fields=True):
    rank: Rank

    def act(self, address: Address, by: str) -> str:
        steer.ask(address, DrainWorker(self.rank, by))
        return f"rank {self.rank} leaves when its step is complete"


class RemoveRequest(msgspec.Struct, forbid_unknown_fields=True):
    rank: Rank

    def act(self, address: Address, by: str) -> str:
        steer.ask(address, RemoveWorker(self.rank, by))
        return f"rank {self.rank} is removed"


class EndRequest(msgspec.Struct, forbid_unknown_fields=True):
    def act(self, address: Address, by: str) -> str:
        steer.ask(address, EndJob(by))
        return "the job ends"


REQUESTS = {"/switch": SwitchRequest, "/drain": DrainRequest, "/remove": RemoveRequest, "/end": EndRequest}
"""What a page may ask for: each is done with the job, and says in one line what came of it."""


class Page:
    """Answers the requests of a page."""

    def __init__(self, reader: Reader, address: Address) -> None:
        self._reader, self._address = reader, address

    def routes(self) -> list[Route]:
        return [
            Route("/", self.index),
            *map(asset_route, ("page.css", "page.js")),
            Route("/state", self.state),
            Route("/saved", self.saved),
            Route("/complete", self.complete),
            *(Route(path, partial(self.act, kind), methods=["POST"]) for path, kind in REQUESTS.items()),
        ]

    async def index(self, request: Request) -> Response:
        return Response(live_page(self._address.job), media_type="text/html")

    async def state(self, request: Request) -> Response:
        """How the job is, and the frames after that of a number."""
        after = request.query_params.get("after", "0")
        view, frames = self._reader.after(int(after) if after.isdecimal() and len(after) <= MOST_DIGITS else 0)
        age_s = time.time() - self._reader.latest[1]
        return as_json({"view": view, "frames": frames, "period_s": PERIOD_S, "age_s": age_s})

    async def saved(self, request: Request) -> Response:
        """The page as one file."""
        view, frames = self._reader.after(0)
        page = await run_in_threadpool(saved_page, self._address.job, view, frames)
        headers = {"Content-Disposition": 'attachment; filename="polyrhythm-job.html"'}
        return Response(page, media_type="text/html", headers=headers)

    async def complete(self, request: Request) -> Response:
        return as_json(completions(request.query_params.get("begun", "")[:MOST_SPEC], BUILT_IN))

    async def act(self, kind: type[Any], request: Request) -> Response:
        by = f"the page at {request.client.host if request.client else 'an unknown address'}"
        try:
            asked = msgspec.json.decode(await request.body(), type=kind)
            return as_json({"said": await run_in_threadpool(asked.act, self._address, by)})
        except msgspec.MsgspecError as error:
            return as_json({"error": f"the request cannot be read: {error}"}, 400)
        except PolyrhythmError as error:
            return as_json({"error": str(error)}, 400 if isinstance(error, UsageError) else 503)


def page_app(reader: Reader, address: Address, key: str, host: str) -> ASGIApp:
    app = Starlette(routes=Page(reader, address).routes())
    app.router.redirect_slashes = False  # it would lead to an address without the key
    return Gate(app, key, host)


def metrics_app(reader: Reader, token: str, host: str, excuses: Callable[[str, int], bool] = is_own_user) -> ASGIApp:
    """What Prometheus reads: numbers, for those who have the token, and on this host for those whom `excuses` knows."""

    async def metrics(_: Request) -> Response:
        return Response(exposition(*reader.latest), media_type=MEDIA_TYPE)

    async def elsewhere(_: Request) -> Response:
        return PlainTextResponse("The metrics are at /metrics.\n", 404)

    app = Starlette(routes=[Route("/metrics", metrics), Route("/", elsewhere)])
    return WithToken(OwnSite(app, host), token, excuses) if is_loopback(host) else WithToken(app, token)


def as_json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


def asset_route(name: str) -> Route:
    async def send(_: Request) -> Response:
        return Response(asset(name), media_type="text/css" if name.endswith(".css") else "text/javascript")

    return Route(f"/{name}", send)
