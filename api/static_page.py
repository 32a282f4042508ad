"""A page that never changes while the process lives: its representations and its ETag are computed once.

The representation is chosen by `Accept-Encoding` (RFC 9110, 12.5.3): gzip if the client prefers it or likes it as well,
otherwise the page as it is. Both have the same weak ETag.
"""

import gzip
import re

import xxhash

from api.etags import OPAQUE_TAG
from api.request import Request
from api.response import JSON, Response

_CODING = re.compile(r"\s*([^\s;,]+)\s*(?:;\s*[qQ]\s*=\s*([01](?:\.\d{0,3})?)\s*)?")


class StaticPage:
    """A JSON document that anyone may read and store for five minutes."""

    def __init__(self, body: bytes) -> None:
        self._tag = xxhash.xxh3_128_hexdigest(body).encode()
        # CORS headers are sent only if `Origin` was: a browser must not use a copy without them for another site.
        headers = (
            (b"cache-control", b"public, max-age=300"),
            (b"etag", b'W/"%b"' % self._tag),
            (b"vary", b"Accept-Encoding, Origin"),
        )
        self._not_modified = Response(304, headers)
        self._identity = Response(200, (JSON, *headers), body)
        compressed = gzip.compress(body, mtime=0)
        self._gzip = Response(200, (JSON, (b"content-encoding", b"gzip"), *headers), compressed)

    def respond(self, request: Request) -> Response:
        """Returns 304 if the client's copy is current, otherwise the page."""
        if self._is_current(request.headers.get(b"if-none-match", b"")):
            return self._not_modified
        accepted = request.headers.get(b"accept-encoding", b"")
        return self._gzip if prefers_gzip(accepted.decode("latin-1")) else self._identity

    def _is_current(self, sent: bytes) -> bool:
        return sent.strip() == b"*" or self._tag in OPAQUE_TAG.findall(sent)


def prefers_gzip(accepted: str) -> bool:
    """Returns whether a value of `Accept-Encoding` allows gzip, and does not prefer the page as it is.

    A part that cannot be read is ignored.
    """
    parts = (_CODING.fullmatch(part) for part in re.split(r"[,\n]", accepted))  # a repeated header has line feeds
    weights = {match[1].lower(): float(match[2] or 1) for match in parts if match}
    weight = weights.get("gzip", weights.get("x-gzip", weights.get("*", 0.0)))
    return weight > 0 and weight >= weights.get("identity", 0.0)
