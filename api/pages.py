"""The paths that need no API key: health, readiness and the OpenAPI document."""

from importlib.resources import files

import msgspec
import xxhash

from api.errors import NoSuchPath, Unavailable
from api.request import JSON, NO_STORE, Request, Response, answer_other_method, is_preflight, opaque_tags
from api.worker import Handler, Worker
from schemas.error_body import Health

_HEALTH = Response(200, JSON + NO_STORE, msgspec.json.encode(Health()))

# The committed document (`python -m docs.generate`): no generator runs in production. CORS headers are sent only if
# `Origin` was: a browser must not use a copy without them for another site.
_BODY = msgspec.json.format(files("api").joinpath("openapi.json").read_bytes(), indent=-1)
_TAG = xxhash.xxh3_128_hexdigest(_BODY).encode()
_HEADERS = b'cache-control: public, max-age=300\r\netag: W/"%b"\r\nvary: Origin\r\n' % _TAG
_OPENAPI = Response(200, JSON + _HEADERS, _BODY)
_NOT_MODIFIED = Response(304, _HEADERS)


def read_only(page: Handler) -> Handler:
    """Returns a page that answers GET, HEAD and OPTIONS, and other methods with 405."""

    async def checked(worker: Worker, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            return answer_other_method(request)
        return await page(worker, request)

    return checked


@read_only
async def healthz(worker: Worker, request: Request) -> Response:  # noqa: ARG001 - every page takes both
    """`/healthz`: this worker responds. Redis is not asked, because restarting the API would not repair Redis."""
    return _HEALTH


@read_only
async def readyz(worker: Worker, request: Request) -> Response:  # noqa: ARG001
    """`/readyz`: this worker is not about to end, a server of Redis holds a complete projection, and each one that does
    executes what a request executes.

    Raises Unavailable.
    """
    if worker.draining:
        raise Unavailable("this worker is about to end")
    await worker.serving.check_ready()
    return _HEALTH


@read_only
async def openapi(worker: Worker, request: Request) -> Response:  # noqa: ARG001
    """`/api/v1/ext/openapi.json`, which anyone may read, and store for five minutes."""
    sent = request.headers.get(b"if-none-match", b"")
    return _NOT_MODIFIED if sent.strip() == b"*" or _TAG in opaque_tags(sent) else _OPENAPI


async def not_found(worker: Worker, request: Request) -> Response:  # noqa: ARG001
    """Every other path. Raises NoSuchPath, except for a preflight: without its answer, a browser would show an error of
    CORS in place of the 404 that the request itself gets.
    """
    if is_preflight(request):
        return answer_other_method(request)
    raise NoSuchPath
