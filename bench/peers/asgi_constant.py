"""A limit: bare ASGI that returns a constant. `python -m bench.peers.asgi_constant <port> <body file>`."""

from starlette.types import Receive, Scope, Send

from bench.peers.uvicorn_server import body, serve

_BODY = body()
_HEADERS = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(_BODY))]


async def app(scope: Scope, receive: Receive, send: Send) -> None:  # noqa: ARG001 - the signature of ASGI
    await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
    await send({"type": "http.response.body", "body": _BODY})


if __name__ == "__main__":
    serve("bench.peers.asgi_constant:app")
