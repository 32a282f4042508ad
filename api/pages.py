"""The paths that need no API key: health, readiness and the OpenAPI document."""

import gzip
import re
from collections.abc import Awaitable, Callable
from importlib.resources import files

import orjson
import xxhash

from api.errors import MethodNotAllowed, NoSuchPath, Unavailable
from api.request import JSON, OPAQUE_TAG, Request, Response, json_response
from api.worker import Worker
from schemas.problems import Health

_ALLOW = b"allow: GET, HEAD\r\n"
_CODING = re.compile(r"\s*([^\s;,]+)\s*(?:;\s*[qQ]\s*=\s*([01](?:\.\d{0,3})?)\s*)?")

Page = Callable[[Worker, Request], Awaitable[Response]]


class StaticPage:
    """A JSON document that anyone may read and store for five minutes. It never changes while the process lives: its
    representations and its ETag are computed once.

    The representation is chosen by `Accept-Encoding` (RFC 9110, 12.5.3): gzip if the client prefers it or likes it as
    well, otherwise the page as it is. Both have the same weak ETag.
    """

    def __init__(self, body: bytes) -> None:
        self._tag = xxhash.xxh3_128_hexdigest(body).encode()
        # CORS headers are sent only if `Origin` was: a browser must not use a copy without them for another site.
        headers = b'cache-control: public, max-age=300\r\netag: W/"%b"\r\nvary: Accept-Encoding, Origin\r\n' % self._tag
        self._not_modified = Response(304, headers)
        self._identity = Response(200, JSON + headers, body)
        compressed = gzip.compress(body, mtime=0)
        self._gzip = Response(200, JSON + b"content-encoding: gzip\r\n" + headers, compressed)

    def respond(self, request: Request) -> Response:
        """Returns 304 if the client's copy is current, otherwise the page."""
        if self._is_current(request.headers.get(b"if-none-match", b"")):
            return self._not_modified
        accepted = request.headers.get(b"accept-encoding", b"")
        return self._gzip if prefers_gzip(accepted.decode("latin-1")) else self._identity

    def _is_current(self, sent: bytes) -> bool:
        return sent.strip() == b"*" or self._tag in OPAQUE_TAG.findall(sent)


# The committed document (`python -m docs.generate`): no generator runs in production.
_OPENAPI = StaticPage(orjson.dumps(orjson.loads(files("api").joinpath("openapi.json").read_bytes())))


def prefers_gzip(accepted: str) -> bool:
    """Returns whether a value of `Accept-Encoding` allows gzip, and does not prefer the page as it is.

    A part that cannot be read is ignored.
    """
    parts = (_CODING.fullmatch(part) for part in re.split(r"[,\n]", accepted))  # a repeated header has line feeds
    weights = {match[1].lower(): float(match[2] or 1) for match in parts if match}
    weight = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return weight > 0 and weight >= weights.get("identity", 0.0)


def read_only(page: Page) -> Page:
    """Returns a page that answers GET and HEAD, and other methods with 405."""

    async def checked(worker: Worker, request: Request) -> Response:
        if request.method not in ("GET", "HEAD"):
            raise MethodNotAllowed(headers=_ALLOW)
        return await page(worker, request)

    return checked


@read_only
async def healthz(worker: Worker, request: Request) -> Response:  # noqa: ARG001 - every page takes both
    """`/healthz`: this worker responds. Redis is not asked, because restarting the API would not repair Redis."""
    return json_response(Health())


@read_only
async def readyz(worker: Worker, request: Request) -> Response:  # noqa: ARG001
    """`/readyz`: this worker is not about to end, and a server of Redis responds and holds a complete projection.

    Raises Unavailable.
    """
    if worker.draining:
        raise Unavailable("this worker is about to end")
    await worker.serving.ask_any()
    return json_response(Health())


@read_only
async def openapi(worker: Worker, request: Request) -> Response:  # noqa: ARG001
    """`/api/v1/ext/openapi.json`."""
    return _OPENAPI.respond(request)


async def not_found(worker: Worker, request: Request) -> Response:  # noqa: ARG001
    """Every other path. Raises NoSuchPath."""
    raise NoSuchPath
