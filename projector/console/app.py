"""What the console answers: the page, its events, questions and actions."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, Response, StreamingResponse
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from projector.console import pages
from projector.console.actions import Actions, Wanted
from projector.console.feed import Feed, Full
from projector.console.guard import Guard, problem
from projector.console.options import Options
from projector.errors import ProjectorError, Refused
from projector.explain.explainer import Explainer
from projector.explain.question import LONGEST
from projector.explain.words import answer
from schemas.version import VERSION

_STATIC = Path(__file__).parent / "static"
_MOST_BYTES = 4_096

logger = logging.getLogger(__name__)


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was typed into the box."""

    text: str


def create_app(
    options: Options,
    feed: Feed,
    explainer: Explainer,
    actions: Actions | None,
    lifespan: Callable[[Starlette], AsyncIterator[None]],
) -> Starlette:
    """`actions` is None if the page may do nothing. `lifespan` runs the sampler."""
    one_at_a_time = asyncio.Lock()
    hello = {"version": VERSION, "actions": actions is not None, "documents": options.show_documents}

    async def index(_: Request) -> Response:
        return FileResponse(_STATIC / "index.html")

    async def docs(request: Request) -> Response:
        html = pages.page(request.path_params["page"])
        if html is None:
            return problem(404, f"There is no page docs/{request.path_params['page']} here. Look into the repository.")
        return HTMLResponse(html)

    async def events(request: Request) -> Response:
        who = request.scope["leadview.who"]
        try:
            stream = feed.open(msgspec.json.encode({**hello, "who": who}))
        except Full:
            return problem(503, "Too many pages of this console are open. Close some of them.")
        return StreamingResponse(stream, media_type="text/event-stream")

    async def find(request: Request) -> Response:
        asked = msgspec.json.decode(await _body(request), type=Asked)
        if not asked.text.strip() or len(asked.text) > LONGEST:
            raise ValueError(f"Write an id, a message key or coordinates, with at most {LONGEST} characters.")
        async with one_at_a_time:  # whatever the number of pages
            found = await explainer.explain(asked.text)
        prefix = explainer.settings.topic_prefix
        return _json([answer(each, prefix, show_documents=options.show_documents) for each in found])

    async def act(request: Request) -> Response:
        if actions is None:
            return problem(403, "This console may do nothing: it was started without --allow-actions.")
        wanted = msgspec.json.decode(await _body(request), type=Wanted)
        actions.begin(wanted, request.scope["leadview.who"])
        return _json(actions.newest, 202)

    return Starlette(
        routes=[
            Route("/", index),
            Route("/docs/{page}", docs),
            Route("/api/events", events),
            Route("/api/find", find, methods=["POST"]),
            Route("/api/act", act, methods=["POST"]),
            Mount("/static", StaticFiles(directory=_STATIC)),
        ],
        middleware=[Middleware(Guard, tokens=options.tokens)],
        exception_handlers={ProjectorError: _refused, ValueError: _wrong, TooLarge: _too_large},
        lifespan=asynccontextmanager(lifespan),
    )


class TooLarge(Exception):
    """The body of a request is larger than any question or action."""


async def _body(request: Request) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MOST_BYTES:
            raise TooLarge
    return body


def _json(value: object, status: int = 200) -> Response:
    return Response(msgspec.json.encode(value), status, media_type="application/json")


async def _refused(_: Request, error: Exception) -> Response:
    return problem(409 if isinstance(error, Refused) else 503, str(error))


async def _wrong(_: Request, error: Exception) -> Response:
    return problem(400, str(error))


async def _too_large(_: Request, _error: Exception) -> Response:
    return problem(413, f"A question has at most {_MOST_BYTES:,} bytes.")
