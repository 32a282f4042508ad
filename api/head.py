"""The head of a request: where it ends, and the rules of RFC 9112 and 3986 that the parser does not check.

No body is ever read, so everything that is received consists of heads. Each ends with an empty line. The parser accepts
no line end but CRLF, so both agree on where a head ends.
"""

import re
from functools import lru_cache
from ipaddress import IPv6Address

MAX_HEAD_BYTES = 16 * 1024
FRAMING = frozenset((b"content-length", b"host", b"transfer-encoding"))
"""The headers that say where a request ends and whom it is for."""

_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_VERSIONS = {b" HTTP/1.1\r\n": "1.1", b" HTTP/1.0\r\n": "1.0"}
_VERSION_LENGTH = 11
_CACHED_HOSTS = 16
_PERCENT = ord("%")  # as a number, because bytes are searched for a number three times as fast as for bytes

# RFC 3986, section 3.2.2: a registered name or an IPv4 address, or an address in brackets. Then a port.
_HOST = re.compile(rb"(?:\[([^]]*)\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?").fullmatch
_FUTURE_ADDRESS = re.compile(rb"v[0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+").fullmatch
_UNRESERVED = re.compile(rb"%(4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe]|3[0-9]|2[DdEe])")


class Head:
    """One head at a time, part by part. `clear` begins the next one."""

    __slots__ = ("_begin", "_line_ended", "_tail", "complete", "size")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """Forget this head. Its parts may hold an API key."""
        self.size = 0
        """The bytes that were received of it; 0 if it has not begun."""
        self.complete = False
        self._begin: bytes | bytearray = b""  # up to the end of its first line, or further
        self._line_ended = False  # only if it comes in several parts
        self._tail = b""  # its last bytes, which may be the first ones of its end

    def take(self, received: bytes, start: int) -> bytes:
        """Add the part that begins at `start` in what was received. Returns this part: it ends with the head, or where
        the head has reached the maximum size.
        """
        if not self.size:  # nearly always, and then nearly always all of it
            end = received.find(_END, start) + len(_END)
            if len(_END) <= end <= start + MAX_HEAD_BYTES:
                self.complete, self.size = True, end - start
                self._begin = received[start:end]
                return self._begin
        return self._take_a_part(received, start)

    def _take_a_part(self, received: bytes, start: int) -> bytes:
        # The end of a head that continues may have begun in an earlier part.
        found = (self._tail + received[start:]).find(_END)
        end = start + found + len(_END) - len(self._tail) if found >= 0 else len(received)
        room = start + MAX_HEAD_BYTES - self.size
        self.complete = found >= 0 and end <= room
        part = received[start : min(end, room)]
        if not self._line_ended:
            # Each part is looked at once, and copied once, even if it is a single byte.
            if not self._begin:
                self._begin = bytearray()
            self._begin += part
            self._line_ended = _LINE_END in self._tail + part
        self._tail = (self._tail + part)[1 - len(_END) :]
        self.size += len(part)
        return part

    @property
    def asks_for_head(self) -> bool:
        """Whether the method is HEAD, so that a response has no body."""
        return self._begin.startswith(b"HEAD ")

    def version(self, place: int) -> str | None:
        """Returns the version in the first line, behind its first `place` bytes, which are the method, a space and the
        target. None if it is not one of HTTP/1 (the parser accepts RTSP), or if there are more spaces.
        """
        return _VERSIONS.get(bytes(self._begin[place : place + _VERSION_LENGTH]))


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
        """`name` is one of FRAMING."""
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


@lru_cache(maxsize=_CACHED_HOSTS)
def is_host(value: bytes) -> bool:
    """Returns whether this is a valid value of the header `Host` (RFC 9112, section 3.2). It may be empty."""
    found = _HOST(value.strip(b" \t"))
    return found is not None and (found[1] is None or _is_address(found[1]))


def _is_address(text: bytes) -> bool:
    """Returns whether this may stand in brackets: an IPv6 address without a zone, or one of a later version."""
    if b"%" in text:
        return False
    try:
        IPv6Address(text.decode("latin-1"))
    except ValueError:
        return _FUTURE_ADDRESS(text) is not None
    return True


def is_chunked_last(codings: bytes) -> bool:
    """Returns whether the last transfer coding is `chunked`. Otherwise the body of a request has no end (RFC 9112,
    section 6.3).
    """
    return codings.rpartition(b",")[2].strip(b" \t").lower() == b"chunked"


def normalized(path: bytes) -> bytes:
    """Returns the equivalent path without needless percent-encoding (RFC 3986, section 6.2.2.2)."""
    return _UNRESERVED.sub(lambda match: bytes([int(match[1], 16)]), path) if _PERCENT in path else path
