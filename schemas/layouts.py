"""How values lie in Redis: a small binary head, then the JSON bytes that are served as they are.

Every entity's value begins with the same 22 bytes, little-endian; Lua reads them as `<c1I7I6I2I6`:

    0   1  state: `L` live; `D` deleted by an event, `T` by a tombstone: a marker that keeps older events
           from bringing the entity back
    1   7  version of the newest event; a tombstone, which has none, keeps the one before
    8   6  offset of that event
    14  2  partition
    16  6  time of the event, milliseconds since 1970

A live document goes on with:

    22  6  tag: hash of the document without the contact summary inside
    28  6  mark: hash of the contact summary (a lead's: of the one it shows); zeros where there is none
    lead:     34  3  where the contact's value begins in the body    37  3  its length    40  body
    contact:  34  3  where the summary's fields end in the body
              37  28 first lead: mark of the summary that it shows, and its short id; zeros for none    65  body

Tag and mark together are the ETag: they come from the content alone, so that a rebuild answers the same. The
mark is also the score in the index of a contact's leads: those with another score are still to be brought up to date.

An organization goes on with:

    22  1  work due: `-` none, `E` erase its keys (deleted), `R` replay its topics (created again after a delete)
    23  1  API access: `1` or `0`
    24  16 key quota, key window, organization quota, organization window: 4 bytes each, 0 where the setting holds

An API key's entity goes on with its hash (64 hex digits) at 22. What the API looks up by that hash exists only
while the key is active, and is no entity:

    0  22  organization, base62: what the key may read
    22  6  expiry, milliseconds since 1970; 0 for never
"""

from datetime import UTC, datetime
from struct import Struct

import msgspec
from xxhash import xxh3_64_digest

STATE_LIVE = 76  # ord("L"): indexing bytes gives a number
TAGS = slice(22, 34)
LEAD_BODY = 40
CONTACT_BODY = 65
FIRST_LEAD = slice(37, 65)
HEAD = 22
_HEAD = Struct("<QQQ").pack
HASH_BYTES = 6
NO_CONTACT = bytes(HASH_BYTES)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

# Both ids stand first in every body and have a fixed length, so Lua finds them by position.
LEAD_CONTACT_ID = slice(116, 152)


class Head(msgspec.Struct, frozen=True):
    """The first 22 bytes of a value: which event it shows."""

    live: bool
    version: int
    offset: int
    partition: int
    time: int
    """Milliseconds since 1970."""


def read_head(value: bytes) -> Head:
    """Read the head of any entity's value. Raises ValueError where it is too short to be one."""
    if len(value) < HEAD:
        raise ValueError(f"a value of {len(value)} bytes is no entity of ours")
    number = int.from_bytes
    return Head(
        value[0] == STATE_LIVE,
        number(value[1:8], "little"),
        number(value[8:14], "little"),
        number(value[14:16], "little"),
        number(value[16:22], "little"),
    )


def write_head(state: bytes, version: int, offset: int, partition: int, time: int) -> bytes:
    """The bytes that `read_head` reads; `state` is `L`, `D` or `T`."""
    # Three numbers of 8 bytes: a third of the time that five odd lengths take.
    # And no max(), which would be a call.
    return _HEAD(state[0] | version << 8, offset | partition << 48, time if time > 0 else 0)[:HEAD]  # noqa: FURB136


def content_hash(content: bytes) -> bytes:
    """Six bytes that change whenever the content does; never all zeros, which stand for "no contact"."""
    digest = xxh3_64_digest(content)[:HASH_BYTES]
    return digest if digest != NO_CONTACT else b"\1" + NO_CONTACT[1:]


def milliseconds(time: datetime) -> int:
    """Milliseconds since 1970, in the 48 bits that a head has for them."""
    since = time - _EPOCH
    found = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    return found if found > 0 else 0  # noqa: FURB136
