"""The paths that need no API key: health, readiness and the OpenAPI document."""

from collections.abc import Awaitable, Callable
from importlib.resources import files

import msgspec

from api.endpoint import Handler
from api.errors import MethodNotAllowed, NoSuchPath, Unavailable
from api.request import Request
from api.response import Response, json_response
from api.static_page import StaticPage
from schemas.problems import Health

_ALLOW = (b"allow", b"GET, HEAD")
_OPENAPI = StaticPage(msgspec.json.format((files("api") / "openapi.json").read_bytes(), indent=-1))


def read_only(page: Callable[[Request], Awaitable[Response]]) -> Handler:
    """Returns a handler that answers GET and HEAD with `page`, and other methods with 405."""

    async def checked(request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(headers=(_ALLOW,))
        return await page(request)

    return checked


@read_only
async def healthz(request: Request) -> Response:  # noqa: ARG001 - every handler takes a request
    """`/healthz`: this worker responds. Redis is not asked, because restarting the API would not repair Redis."""
    return json_response(Health())


@read_only
async def readyz(request: Request) -> Response:
    """`/readyz`: this worker is not about to end, and a server of Redis responds and holds a complete projection.

    Raises Unavailable.
    """
    if request.state["drain"].begun:
        raise Unavailable("this worker is about to end")
    await request.state["serving"].ask_any()
    return json_response(Health())


@read_only
async def openapi(request: Request) -> Response:
    """`/api/v1/ext/openapi.json`."""
    return _OPENAPI.respond(request)


async def not_found(request: Request) -> Response:  # noqa: ARG001
    """Every other path. Raises NoSuchPath."""
    raise NoSuchPath
