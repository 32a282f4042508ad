"""Rules of RFC 9112 that the parser does not check."""

import re

# RFC 3986, section 3.2.2: a registered name or an IPv4 address, or an address in brackets; then a port.
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?").fullmatch
_OTHER_PROTOCOL = re.compile(rb"^[A-Z_-]+ [^ \r\n]+ (?!HTTP/)[A-Z]+/[0-9.]+\r?$", re.MULTILINE).search
_UNRESERVED = re.compile(rb"%(4[1-9A-Fa-f]|5[0-9Aa]|6[1-9A-Fa-f]|7[0-9AaEe]|3[0-9]|2[DdEe]|5[Ff])")


def is_host(value: bytes) -> bool:
    """Returns whether this is a valid value of the header `Host` (section 3.2). It may be empty."""
    return _HOST(value.strip(b" \t")) is not None


def is_chunked_last(codings: bytes) -> bool:
    """Returns whether the last transfer coding is `chunked`. Otherwise a request has no known length (section 6.3)."""
    return codings.rpartition(b",")[2].strip(b" \t").lower() == b"chunked"


def is_other_protocol(part: bytes) -> bool:
    """Returns whether the part has the request line of another protocol, such as RTSP, which the parser accepts."""
    return b" HTTP/1." not in part and _OTHER_PROTOCOL(part) is not None


def normalized(path: bytes) -> bytes:
    """Returns an equivalent path without needless percent-encoding (RFC 3986, section 6.2.2.2)."""
    return _UNRESERVED.sub(lambda match: bytes([int(match[1], 16)]), path) if b"%" in path else path
