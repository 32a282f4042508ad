"""What the console answers: the page, its events and questions; and who may ask.

- Without tokens the console listens on loopback only, and answers only if `Host` is a name of loopback. So a foreign
  site whose name points to 127.0.0.1 (DNS rebinding) gets nothing.
- With tokens, everything below `/api/` needs `Authorization: Bearer <token>`. There is no cookie, so no other site can
  send a request in somebody's name.
- Everything below `/api/` needs a header that no other site can send without a preflight, which is never allowed.
"""

import asyncio
import hmac
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import orjson
from starlette.applications import Starlette
from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from operate.console import pages
from operate.console.feed import Feed
from operate.explain.explainer import LONGEST, Explainer
from operate.explain.words import answer
from projector.errors import ProjectorError, Refused
from schemas.version import VERSION

_STATIC = Path(__file__).parent / "static"
_MOST_BYTES = 4_096
HEADER = "x-leadview-console"
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
LOCAL = "local"
"""Who asks if no token is needed."""
SECURITY = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
        "trusted-types 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
    "cache-control": "no-store",
}


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was typed into the box."""

    text: str


def create_app(
    tokens: Mapping[str, str],
    feed: Feed,
    explainer: Explainer,
    lifespan: Callable[[Starlette], AsyncIterator[None]],
    *,
    show_documents: bool = False,
) -> Starlette:
    """`tokens` has the name of each person by the token; none is needed if it is empty. `lifespan` runs the sampler."""
    one_at_a_time = asyncio.Lock()
    hello = {"version": VERSION, "documents": show_documents}

    async def index(_: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def docs(request: Request) -> Response:
        html = pages.page(request.path_params["page"])
        if html is None:
            return problem(404, f"There is no page docs/{request.path_params['page']} here. Look into the repository.")
        return HTMLResponse(html)

    async def events(request: Request) -> Response:
        stream = feed.open(orjson.dumps({**hello, "who": request.scope["leadview.who"]}))
        if stream is None:
            return problem(503, "Too many pages of this console are open. Close some of them.")
        return StreamingResponse(stream, media_type="text/event-stream")

    async def find(request: Request) -> Response:
        asked = msgspec.json.decode(await _body(request), type=Asked)
        if not asked.text.strip() or len(asked.text) > LONGEST:
            raise ValueError(f"Write a message key or coordinates, with at most {LONGEST} characters.")
        async with one_at_a_time:  # whatever the number of pages
            found = await explainer.explain(asked.text)
        prefix = explainer.settings.topic_prefix
        return _json([answer(each, prefix, show_documents=show_documents) for each in found])

    return Starlette(
        routes=[
            Route("/", index),
            Route("/docs/{page}", docs),
            Route("/api/events", events),
            Route("/api/find", find, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(Guard, tokens=tokens)],
        exception_handlers=dict.fromkeys(_STATUSES, _failed),
        lifespan=asynccontextmanager(lifespan),
    )


class BodyTooLarge(Exception):
    """The body of a request is larger than any question."""


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise BodyTooLarge(f"A question has at most {_MOST_BYTES:,} bytes.")
    return body


def _json(value: object) -> Response:
    return Response(msgspec.json.encode(value), media_type="application/json")


_STATUSES: Mapping[type[Exception], int] = {Refused: 409, ProjectorError: 503, BodyTooLarge: 413, ValueError: 400}
"""The first one that an error belongs to is the status of the answer."""


async def _failed(_: Request, error: Exception) -> Response:
    return problem(next(status for kind, status in _STATUSES.items() if isinstance(error, kind)), str(error))


class Guard:
    """Refuses what strangers ask, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, tokens: Mapping[str, str]) -> None:
        """`tokens` has the name of each person by the token."""
        self._app = app
        self._tokens = tokens

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_secured(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(SECURITY)
            await send(message)

        headers = Headers(scope=scope)
        refusal = self._refusal(scope, headers)
        await (refusal or self._app)(scope, receive, send_secured)

    def _refusal(self, scope: Scope, headers: Headers) -> Response | None:
        """Returns the response to a request that may not be answered. Otherwise the scope says who asks."""
        if not self._tokens and _name(headers.get("host", "")) not in _LOCAL_NAMES:
            return problem(421, "The console answers only as localhost. Open http://127.0.0.1 with its port.")
        if not scope["path"].startswith("/api/"):
            return None
        origin = headers.get("origin")
        foreign = origin is not None and origin.partition("://")[2] != headers.get("host", "")
        if headers.get(HEADER) != "page" or foreign:
            return problem(403, "Only the page of the console may ask this.")
        who = self._who(headers.get("authorization", "")) if self._tokens else LOCAL
        if who is None:
            return problem(401, "This token is not known. The file of --token-file has those that are.")
        scope["leadview.who"] = who
        return None

    def _who(self, authorization: str) -> str | None:
        """Compares with every token, in a time that says nothing about any of them."""
        scheme, _, given = authorization.partition(" ")
        found = None
        for token, name in self._tokens.items():
            if hmac.compare_digest(token.encode(), given.encode()):
                found = name
        return found if scheme.lower() == "bearer" else None


def problem(status: int, message: str) -> Response:
    """Returns an answer in the form of the API's errors."""
    return Response(orjson.dumps({"status": status, "message": message}), status, media_type="application/json")


def _name(host: str) -> str:
    """Returns the name of a Host header, without its port."""
    name, colon, port = host.lower().rpartition(":")
    return name if colon and port.isdigit() else host.lower()
