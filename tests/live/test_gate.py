"""Who gets anything from the page."""

import asyncio
from collections.abc import Mapping
from typing import Any, cast

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.types import ASGIApp

from polyrhythm.live.app import metrics_app, page_app
from polyrhythm.live.gate import MAX_BODY, Gate
from polyrhythm.runtime.wire.protocol import Address

HERE = {"host": "127.0.0.1:80"}
JSON = {"content-type": "application/json", "content-length": "2", "host": "127.0.0.1:80"}


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(f"{request.method} {request.url.path}")


APP = Gate(Starlette(routes=[Route("/state", echo), Route("/switch", echo, methods=["POST"])]), "secret", "127.0.0.1")


def ask(
    path: str, method: str = "GET", headers: Mapping[str, str] = HERE, app: ASGIApp = APP
) -> tuple[int, str, dict[str, str]]:
    """Status, text and headers of an answer, without a socket."""
    sent: list[dict[str, Any]] = []
    given = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": path, "query_string": b"", "headers": given, "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    async def run() -> None:
        await app({**scope, "scheme": "http", "server": ("127.0.0.1", 80), "client": ("127.0.0.1", 9)}, receive, send)

    asyncio.run(run())
    body = b"".join(message.get("body", b"") for message in sent[1:]).decode()
    return sent[0]["status"], body, {name.decode(): value.decode() for name, value in sent[0]["headers"]}


def test_with_the_key_the_application_answers_and_does_not_see_it() -> None:
    status, text, headers = ask("/secret/state")
    assert (status, text) == (200, "GET /state")
    assert headers["referrer-policy"] == "no-referrer"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert ask("/secret/switch", "POST", JSON)[0] == 200


def metrics_of(host: str, ours: bool) -> ASGIApp:
    """Metrics that have clients of the job's own user, or of another one."""
    return metrics_app(cast(Any, None), "secret", host, lambda address, port: ours)


def test_metrics_need_no_key_of_their_user_and_are_for_no_other_site() -> None:
    app = metrics_of("127.0.0.1", ours=True)
    assert ask("/", app=app)[:2] == (404, "The metrics are at /metrics.\n")
    for foreign in ({"host": "rebound.example"}, {**HERE, "sec-fetch-site": "cross-site"}):
        assert ask("/metrics", headers=foreign, app=app)[0] == 403


@pytest.mark.parametrize("given", [{}, {"authorization": "Bearer secre"}, {"authorization": "secret"}])
@pytest.mark.parametrize(
    ("host", "named", "ours"), [("0.0.0.0", "node7:9000", True), ("127.0.0.1", "127.0.0.1:9000", False)]
)
def test_metrics_for_others_need_the_token(given: dict[str, str], host: str, named: str, ours: bool) -> None:
    app = metrics_of(host, ours)
    for path in ("/", "/metrics", "/secret/metrics"):
        status, text, headers = ask(path, headers={"host": named, **given}, app=app)
        assert (status, headers["www-authenticate"]) == (401, "Bearer")
        assert text.startswith("A job's metrics need its token: Authorization: Bearer $POLYRHYTHM_TOKEN. ")
    assert ask("/", headers={"host": named, "authorization": "Bearer secret"}, app=app)[0] == 404


def test_the_page_leads_to_no_address_without_its_key() -> None:
    app = page_app(cast(Any, None), Address("unix:@nobody", "job"), "secret", "127.0.0.1")
    for path in ("/secret/state/", "/secret//", "/secret/page.css/"):
        assert ask(path, app=app)[0] == 404


@pytest.mark.parametrize(
    "path", ["/", "/state", "/secret", "/secre/state", "/secretx/state", "//state", "/%73ecret/state"]
)
def test_without_the_key_there_is_nothing(path: str) -> None:
    status, text, _ = ask(path)
    assert status == 403
    assert "needs its key" in text
    assert "secret" not in text


@pytest.mark.parametrize(
    ("method", "path", "headers", "why"),
    [
        ("POST", "/secret/switch", {**JSON, "origin": "http://evil.example"}, "from another site"),
        ("POST", "/secret/switch", {**JSON, "origin": "null"}, "from another site"),
        ("GET", "/secret/state", {"host": "127.0.0.1:80", "sec-fetch-site": "cross-site"}, "from another site"),
        ("POST", "/secret/switch", {**JSON, "origin": "http://["}, "from another site"),
        ("GET", "/secret/state", {"host": "evil.example"}, "known under another name"),
        ("GET", "/secret/state", {"host": "127.evil.example"}, "known under another name"),
        ("GET", "/secret/state", {"host": "127.0.0.1.evil.example:80"}, "known under another name"),
        ("GET", "/secret/state", {"host": "["}, "known under another name"),
        ("POST", "/secret/switch", {**JSON, "content-length": "9" * 5000}, "at most 4096 bytes"),
        ("POST", "/secret/switch", {**JSON, "content-type": "text/plain"}, "must be JSON"),
        ("POST", "/secret/switch", {**JSON, "content-length": str(MAX_BODY + 1)}, "at most 4096 bytes"),
        ("POST", "/secret/switch", {"host": "localhost", "content-type": "application/json"}, "must say its length"),
        ("POST", "/secret/switch", {**JSON, "transfer-encoding": "chunked"}, "must come in one piece"),
        ("DELETE", "/secret/state", {"host": "localhost"}, "DELETE is not used here"),
    ],
)
def test_other_sites_and_odd_requests_are_refused(method: str, path: str, headers: dict[str, str], why: str) -> None:
    status, text, _ = ask(path, method, headers)
    assert status == 403
    assert why in text


def test_the_page_itself_may_ask_through_a_tunnel() -> None:
    headers = {**JSON, "host": "localhost:9000", "origin": "http://localhost:9000", "sec-fetch-site": "same-origin"}
    assert ask("/secret/switch", "POST", headers)[0] == 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8265", "localhost", "LOCALHOST:80", "[::1]:80"])
def test_this_host_has_several_names(host: str) -> None:
    assert ask("/secret/state", headers={"host": host})[0] == 200


def test_beyond_this_host_it_may_have_any_name() -> None:
    app = Gate(Starlette(routes=[Route("/state", echo)]), "secret", "0.0.0.0")
    assert ask("/secret/state", headers={"host": "node7:8265"}, app=app)[0] == 200
