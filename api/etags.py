"""Entity tags (RFC 9110, 8.8.3 and 13.1.2): 24 hex digits for the 12 bytes that stand in the value in Redis.

They are weak: a proxy may compress a body on its way. `If-None-Match` compares weakly, so that a tag that
was made strong on its way back matches as well.
"""

import re

from schemas.layouts import TAGS

MAX_TAGS = 32
"""More tags of one request are not looked at: at worst a whole document is sent where a 304 would have done."""

_OPAQUE_TAG = re.compile(rb'"([^"]*)"')
_OURS = re.compile(rb"[0-9a-f]{24}")


def etag(value: bytes) -> bytes:
    """The ETag header of a document's value in Redis."""
    return b'W/"%b"' % value[TAGS].hex().encode()


def tags_to_match(header: bytes) -> tuple[bytes, ...]:
    """The tags of an `If-None-Match` header as the script takes them: 12 bytes each, or `*`.

    What is no tag of ours can match nothing and is left out.
    """
    if header.strip() == b"*":
        return (b"*",)
    ours = filter(_OURS.fullmatch, _OPAQUE_TAG.findall(header))
    return tuple(bytes.fromhex(tag.decode()) for tag, _ in zip(ours, range(MAX_TAGS), strict=False))
