"""Rules of RFC 9112 and 3986 that the parser does not check."""

import re
from functools import lru_cache
from ipaddress import IPv6Address

# RFC 3986, section 3.2.2: a registered name or an IPv4 address, or an address in brackets. Then a port.
_HOST = re.compile(rb"(?:\[([^]]*)\]|(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)(?::[0-9]*)?").fullmatch
_FUTURE_ADDRESS = re.compile(rb"v[0-9A-Fa-f]+\.[A-Za-z0-9._~!$&'()*+,;=:-]+").fullmatch
_UNRESERVED = re.compile(rb"%(4[1-9A-Fa-f]|5[0-9AaFf]|6[1-9A-Fa-f]|7[0-9AaEe]|3[0-9]|2[DdEe])")
_PERCENT = ord("%")  # as a number, because bytes are searched for a number three times as fast as for bytes
_CACHED_HOSTS = 16


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
