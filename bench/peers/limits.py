"""Limits: servers that do less than Leadview's API, with the same settings of uvicorn.

`python -m bench.peers.limits <port> asgi-constant <file>`       bare ASGI that returns the contents of a file
`python -m bench.peers.limits <port> starlette-constant <file>`  a Starlette route that does so
`python -m bench.peers.limits <port> plain-read <redis port>`    bare ASGI that returns the value of a key: `GET /<key>`

With `plain_set`, which fills that Redis from Kafka, `plain-read` is the least that shows events over HTTP.
"""

import sys
from pathlib import Path

import uvicorn
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from schemas.resources import RESOURCES


def asgi_constant(file: str) -> ASGIApp:
    body = Path(file).read_bytes()
    start = {"type": "http.response.start", "status": 200, "headers": _headers(body)}

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of ASGI
        await send(start)
        await send({"type": "http.response.body", "body": body})

    return app


def starlette_constant(file: str) -> ASGIApp:
    body = Path(file).read_bytes()

    async def constant(request: Request) -> Response:  # noqa: ARG001 - the signature of a route
        return Response(body, media_type="application/json")

    return Starlette(routes=[Route(f"/api/v1/ext/{resource.topic}/{{id}}", constant) for resource in RESOURCES])


def plain_read(redis_port: str) -> ASGIApp:
    redis = Redis(port=int(redis_port), protocol=2)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of ASGI
        value = await redis.get(scope["path"][1:])
        body = value if isinstance(value, bytes) else b""
        status = 404 if value is None else 200
        await send({"type": "http.response.start", "status": status, "headers": _headers(body)})
        await send({"type": "http.response.body", "body": body})

    return app


def serve(app: ASGIApp, port: str) -> None:
    """Serve as Leadview's API does."""
    uvicorn.run(
        app,
        host="127.0.0.1",
        port=int(port),
        http="httptools",
        loop="uvloop",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,
    )


def _headers(body: bytes) -> list[tuple[bytes, bytes]]:
    return [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]


_APPS = {"asgi-constant": asgi_constant, "starlette-constant": starlette_constant, "plain-read": plain_read}

if __name__ == "__main__":
    port, what, argument = sys.argv[1:]
    serve(_APPS[what](argument), port)
