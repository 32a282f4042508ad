"""A limit: a Starlette route that returns a constant.

`python -m bench.peers.starlette_constant <port> <body file>`.
"""

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from bench.peers.uvicorn_server import body, serve

_BODY = body()


async def constant(request: Request) -> Response:  # noqa: ARG001 - the signature of a route
    return Response(_BODY, media_type="application/json")


app = Starlette(
    routes=[
        Route("/api/v1/ext/leads/{id}", constant),
        Route("/api/v1/ext/contacts/{id}", constant),
    ]
)

if __name__ == "__main__":
    serve("bench.peers.starlette_constant:app")
