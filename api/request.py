"""A request, as far as the API looks at it."""

import random
import re
from typing import TypedDict
from urllib.parse import unquote_to_bytes

from msgspec import Struct
from starlette.types import Scope

from api.credentials import REPEATED
from api.metrics.counters import Counters
from api.redis.generation import LiveGeneration
from api.redis.servers import Servers
from api.redis.store import Store

_READ = frozenset((b"authorization", b"if-none-match", b"origin", b"x-request-id"))
_SANE_ID = re.compile(rb"[A-Za-z0-9._:-]{1,128}")


class State(TypedDict):
    """What the lifespan yields: each request finds it in `scope["state"]`."""

    store: Store
    servers: Servers
    generation: LiveGeneration
    counters: Counters


class Request(Struct):
    """`headers` holds the four that are read; the values of a repeated one are joined by REPEATED."""

    id: bytes
    """X-Request-Id: the caller's own where it is sane, else a new one."""
    method: str
    raw_path: bytes
    headers: dict[bytes, bytes]
    state: State

    @property
    def last_segment(self) -> str:
        """What stands after the last slash, percent-decoded."""
        segment = self.raw_path.rpartition(b"/")[2]
        if b"%" in segment:
            segment = unquote_to_bytes(segment)
        return segment.decode("latin-1")


def read(scope: Scope) -> Request:
    """The request of an ASGI scope."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in _READ:
            headers[name] = headers[name] + REPEATED + value if name in headers else value
    return Request(
        request_id(headers.get(b"x-request-id")), scope["method"], scope["raw_path"], headers, scope["state"]
    )


def request_id(sent: bytes | None) -> bytes:
    """The id that was sent, where it can go into headers and logs as it is; else 32 new hex digits."""
    if sent is not None and _SANE_ID.fullmatch(sent):
        return sent
    return b"%032x" % random.getrandbits(128)
