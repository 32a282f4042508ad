"""The request head that is being received: where it ends, and which version of HTTP its first line names.

No body is ever read, so everything that is received consists of heads. Each ends with an empty line. The parser accepts
no line end but CRLF, so both agree on where a head ends.
"""

MAX_HEAD_BYTES = 16 * 1024

_END = b"\r\n\r\n"
_LINE_END = b"\r\n"
_VERSIONS = {b" HTTP/1.1\r\n": "1.1", b" HTTP/1.0\r\n": "1.0"}
_VERSION_LENGTH = 11


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
