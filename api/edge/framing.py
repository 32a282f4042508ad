"""The headers of a request that say where it ends and whom it is for."""

from api.edge.rules import is_chunked_last, is_host

CHECKED = frozenset((b"content-length", b"host", b"transfer-encoding"))


class Framing:
    """What these headers of one request said so far. `clear` begins the next request."""

    __slots__ = ("_coding", "_hosts", "has_body")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self.has_body = False
        self._hosts = 0  # one that is not valid counts twice
        self._coding = b""  # the last Transfer-Encoding; the parser refuses an empty one

    def add(self, name: bytes, value: bytes) -> None:
        """`name` is one of CHECKED."""
        if name == b"host":
            self._hosts += 1 if is_host(value) else 2
        elif name == b"transfer-encoding":
            self.has_body, self._coding = True, value
        elif value.strip(b" \t0"):
            self.has_body = True

    def is_valid(self, version: str) -> bool:
        """Returns whether the request keeps to RFC 9112, sections 3.2 (Host), 6.1 and 6.3 (transfer codings)."""
        if version == "1.0":
            return self._hosts <= 1 and not self._coding
        return self._hosts == 1 and (not self._coding or is_chunked_last(self._coding))
