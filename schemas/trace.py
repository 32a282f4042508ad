"""The trace that a request or an event belongs to: `traceparent` of W3C Trace Context."""

import re

_TRACEPARENT = re.compile(rb"(?!ff)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}")


def trace_id(traceparent: bytes) -> str | None:
    """Returns the trace that this names, as 32 hex digits; None if it is not valid. What a version after 00 appends is
    not read.
    """
    match = _TRACEPARENT.match(traceparent)
    rest = traceparent[match.end() :] if match else b""
    if match is None or (rest and (traceparent.startswith(b"00") or rest[:1] != b"-")):
        return None
    return match[1].decode()
