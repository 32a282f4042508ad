"""A request: the parts of an ASGI scope that the API uses."""

import random
import re
from typing import TypedDict

from msgspec import Struct
from starlette.types import Scope

from api.credentials import REPEATED, Credentials
from api.drain import Drain
from api.metrics.counters import Counters
from api.redis.servers import Servers
from api.redis.serving import Serving
from api.redis.store import Store
from api.request_log import RequestLog
from schemas import api_keys

_USED_HEADERS = frozenset(
    (b"accept-encoding", b"authorization", b"if-none-match", b"origin", b"x-forwarded-for", b"x-request-id")
)
_VALID_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class State(TypedDict):
    """What the lifespan yields. Each request finds it in `scope["state"]`."""

    store: Store
    servers: Servers
    serving: Serving
    counters: Counters
    log: RequestLog
    drain: Drain
    docs_url: str | None


class Request(Struct):
    """`headers` holds only the headers that are used; the values of a repeated one are joined by REPEATED."""

    id: bytes
    """X-Request-Id: the caller's own id if it is valid, otherwise a new one."""
    method: str
    raw_path: bytes
    headers: dict[bytes, bytes]
    state: State
    client: str | None = None
    """The address from which the connection was opened."""
    caller: Credentials | None = None
    """The names of the key, as soon as its form is known to be right."""
    error: Exception | None = None
    """Why the response is an error."""

    @property
    def last_segment(self) -> str:
        """The part of the path after the last slash."""
        return self.raw_path.rpartition(b"/")[2].decode("latin-1")


def read(scope: Scope) -> Request:
    """Returns the request of an ASGI scope."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _USED_HEADERS:
            headers[name] = headers[name] + REPEATED + value if name in headers else value
    client = scope.get("client")
    return Request(
        request_id(headers.get(b"x-request-id")),
        scope["method"],
        scope["raw_path"],
        headers,
        scope["state"],
        client[0] if client else None,
    )


def request_id(sent: bytes | None) -> bytes:
    """Returns the id that was sent if it is safe in headers and logs, otherwise 32 new hex digits."""
    if sent is not None and _VALID_ID.fullmatch(sent) and not api_keys.is_in(sent):  # it is logged, and no key may be
        return sent
    return b"%032x" % random.getrandbits(128)
