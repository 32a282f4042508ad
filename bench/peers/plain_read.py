"""A limit: bare ASGI that returns the value of a key from Redis: `GET /<key>`, with 404 if there is none.

`python -m bench.peers.plain_read <port> <redis port>`. With `plain_set`, which fills that Redis from Kafka,
it is the least that shows events over HTTP.
"""

import sys

from redis.asyncio import Redis
from starlette.types import Receive, Scope, Send

from bench.peers.uvicorn_server import serve

_redis = Redis(port=int(sys.argv[2]), protocol=2)


async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of ASGI
    value = await _redis.get(scope["path"][1:])
    body = value or b""
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 404 if value is None else 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


if __name__ == "__main__":
    serve("bench.peers.plain_read:app")
