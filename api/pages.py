"""The paths that need no key: health, readiness and the description of the API."""

from collections.abc import Awaitable, Callable

import msgspec

from api.answer import JSON, Answer, of_struct
from api.endpoint import Handler
from api.errors import MethodNotAllowed, NoSuchPath
from api.request import Request
from schemas.openapi.document import document
from schemas.problems import Health

_ALLOW = (b"allow", b"GET, HEAD")
_DESCRIPTION = Answer(200, (JSON, (b"cache-control", b"public, max-age=300")), msgspec.json.encode(document()))


def read_only(page: Callable[[Request], Awaitable[Answer]]) -> Handler:
    """`page`, answering 405 to anything but GET and HEAD."""

    async def checked(request: Request) -> Answer:
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(headers=(_ALLOW,))
        return await page(request)

    return checked


@read_only
async def alive(request: Request) -> Answer:  # noqa: ARG001 - every page has this shape
    """`/healthz`: this worker answers. Asks nothing of Redis: restarting the API would not bring it back."""
    return of_struct(Health())


@read_only
async def ready(request: Request) -> Answer:
    """`/readyz`: Redis answers and says which generation to serve. Raises Unavailable."""
    await request.state["generation"].refresh()
    return of_struct(Health())


@read_only
async def description(request: Request) -> Answer:  # noqa: ARG001
    """`/api/v1/ext/openapi.json`."""
    return _DESCRIPTION


async def nothing(request: Request) -> Answer:  # noqa: ARG001
    """Every other path. Raises NoSuchPath."""
    raise NoSuchPath
