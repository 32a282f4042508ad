"""Entity tags (RFC 9110, 8.8.3 and 13.1.2): the 12 bytes of hashes in a stored value, as 24 hex digits.

The tags are weak, because a proxy may compress a body on its way. `If-None-Match` compares weakly, so a tag that a
proxy turned into a strong one matches as well.
"""

import re

from schemas.layouts import ETAG

MAX_TAGS = 32
"""Further tags of a request are ignored: at worst, a whole document is sent although a 304 was possible."""

OPAQUE_TAG = re.compile(rb'"([^"]*)"')
_OWN_TAG = re.compile(rb"[0-9a-f]{24}")


def etag(value: bytes) -> bytes:
    """Returns the ETag header for a document's value in Redis."""
    return b'W/"%b"' % value[ETAG].hex().encode()


def tags_to_match(header: bytes) -> tuple[bytes, ...]:
    """Returns the tags of an `If-None-Match` header in the form that the script takes: 12 bytes each, or `*`.

    Tags that this API cannot have sent are left out, because they match nothing.
    """
    if header.strip() == b"*":
        return (b"*",)
    own = filter(_OWN_TAG.fullmatch, OPAQUE_TAG.findall(header))
    return tuple(bytes.fromhex(tag.decode()) for tag, _ in zip(own, range(MAX_TAGS), strict=False))
