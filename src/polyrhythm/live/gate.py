"""Who gets anything from the page: those who know its key, from the page itself, in small requests.

The key stands in the path, so that one address opens the page and no other site can guess it. Beyond it a request must
name this host (a foreign name that points here is another site's) and must not come from the script of another origin.
"""

import hmac
import re
from collections.abc import Callable

from starlette.datastructures import Headers
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from polyrhythm.runtime.wire.connection import is_loopback

MAX_BODY = 4096
"""Bytes of a request."""

HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([^:\[\]]*))(?::\d*)?", re.IGNORECASE)
"""Of a request: a name or an address, and perhaps a port."""

NEEDS_KEY = "This page needs its key: open the address that polyrhythm run has printed.\n"

NEEDS_TOKEN = (
    "A job's metrics need its token: Authorization: Bearer $POLYRHYTHM_TOKEN. "
    "On its first host the job's own user needs none.\n"
)

HEADERS = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}


class Gate:
    """Lets requests with the key through to the application, which does not see the key."""

    def __init__(self, app: ASGIApp, key: str, host: str) -> None:
        self._app, self._key, self._host = app, key, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        key, slash, rest = str(scope["path"])[1:].partition("/")
        headers = Headers(scope=scope)
        if not (slash and hmac.compare_digest(key.encode(), self._key.encode())):
            await PlainTextResponse(NEEDS_KEY, 403, HEADERS)(scope, receive, send)
        elif reason := refusal(str(scope["method"]), headers, self._host):
            await PlainTextResponse(reason + "\n", 403, HEADERS)(scope, receive, send)
        else:
            inner = {**scope, "path": f"/{rest}", "raw_path": f"/{rest}".encode()}
            await self._app(inner, receive, with_headers(send))


class WithToken:
    """Lets those requests through that have the token in the header for it, as Prometheus sends it.

    Args:
        app: what they are for.
        token: of the job.
        excuses: whether a client, by its address and port, needs none; nobody is, unless it is given.
    """

    def __init__(self, app: ASGIApp, token: str, excuses: Callable[[str, int], bool] | None = None) -> None:
        self._app, self._right, self._excuses = app, f"Bearer {token}".encode(), excuses

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan" or (scope["type"] == "http" and self._passes(scope)):
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            headers = {**HEADERS, "WWW-Authenticate": "Bearer"}
            await PlainTextResponse(NEEDS_TOKEN, 401, headers)(scope, receive, send)

    def _passes(self, scope: Scope) -> bool:
        given = Headers(scope=scope).get("authorization", "").encode()
        if hmac.compare_digest(given, self._right):
            return True
        return self._excuses is not None and self._excuses(*scope["client"])


class OwnSite:
    """Lets those requests through to an application that name this host and are of no other site."""

    def __init__(self, app: ASGIApp, host: str) -> None:
        self._app, self._host = app, host

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        reason = refusal(str(scope["method"]), Headers(scope=scope), self._host) if scope["type"] == "http" else ""
        await (PlainTextResponse(reason + "\n", 403, HEADERS) if reason else self._app)(scope, receive, send)


def refusal(method: str, headers: Headers, host: str) -> str:
    """Why a request gets nothing although it has the key; empty if it may pass.

    >>> refusal("POST", Headers({"host": "127.0.0.1:80", "origin": "http://elsewhere.example"}), "127.0.0.1")
    'a request from another site is refused'
    """
    named = headers.get("host", "")
    if is_loopback(host) and not is_loopback(name_in(named)):
        return "this host is known under another name here; use 127.0.0.1 or localhost"
    origin = headers.get("origin")
    foreign = origin is not None and origin.partition("://")[2] != named
    if foreign or headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return "a request from another site is refused"
    if method != "POST":
        return "" if method in ("GET", "HEAD") else f"{method} is not used here"
    if headers.get("content-type", "").partition(";")[0] != "application/json":
        return "a request must be JSON and say so"
    if "transfer-encoding" in headers:  # its length counts instead, which nobody has said
        return "a request must come in one piece"
    length = headers.get("content-length", "")
    if not length.isdecimal() or len(length) > len(str(MAX_BODY)) or int(length) > MAX_BODY:
        return f"a request must say its length, of at most {MAX_BODY} bytes"
    return ""


def name_in(host: str) -> str:
    """The name or the address of a request's host, without its port; empty if it has none.

    >>> name_in("localhost:80"), name_in("[::1]:80"), name_in("[")
    ('localhost', '::1', '')
    """
    found = HOST.fullmatch(host)
    return (found[1] or found[2]).lower() if found else ""


def with_headers(send: Send) -> Send:
    """Adds what every answer says about what may be done with it."""
    extra = [(name.lower().encode(), value.encode()) for name, value in HEADERS.items()]

    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message.get("headers", ()), *extra]}
        await send(message)

    return sending
