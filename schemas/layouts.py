"""The layout of values in Redis: a small binary head, then the JSON bytes that are served unchanged.

Every entity's value begins with the same 22 bytes, little-endian; Lua reads them as `<c1I7I6I2I6`:

    0   1  state: `L` live; `D` deleted by an event; `T` deleted by a tombstone. A deleted entity leaves this head as a
           marker, so that older events cannot restore it
    1   7  version of the newest event; a tombstone has no version and keeps the previous one
    8   6  offset of that event
    14  2  partition, and in the four highest bits the history of its topic: which of up to 16 in turn. A topic that is
           created again, or cut off, uses its offsets again. So those of another history are compared no more than
           those of another partition are: the times decide
    16  6  time of its record in Kafka, milliseconds since 1970. A tombstone and an event of different partitions are
           compared by these times alone: no clock of a producer of events counts. (What a former version of the
           program has written for an event has the time of that event here, until it is written again.)

In a live document follow:

    22  6  body hash: of the document without the contact summary inside
    28  6  summary hash: of the contact summary (in a lead: of the summary inside it); zeros if there is none
    lead:     34  3  offset of the contact summary in the body    37  3  its length    40  body
    contact:  34  3  offset at which the fields of the summary end in the body
              37  28 first lead: hash of the summary inside it, and its short id; zeros for none    65  body
    others:   34  body

A body is JSON, which begins with `{`, or packed: compressed (`schemas.compression`, `schemas.bodies`):

    lead:     a zero byte; then packed: the body without contact's id and summary, which are put in at 116, where JSON
              has the contact's id as well
    contact:  packed: the fields of the summary, whose length with the highest bit set is at 34; then packed: the rest
    others:   packed: the body

The summary inside a lead is stored as its contact has it: JSON, or only its fields, packed. So it may be JSON in a lead
that is compressed; and if it is packed in a lead that is not, `(` replaces the `{` with which the body begins.

Both hashes together are the ETag. They depend on the content alone, so a rebuild does not change them. The summary
hash is also the score in the index of a contact's leads: leads with another score still have to be updated.

In an organization follow:

    22  1  job due: `-` none, `E` erase its keys (deleted), `R` reapply its records (recreated after a delete)
    23  1  API access: `1` or `0`
    24  16 key quota, key window, organization quota, organization window: 4 bytes each, 0 if the setting applies

In the entity of an API key, its hash follows (64 hex digits, at 22). The record that the API looks up by that hash has
no head:

    0   22 organization, base62: the key may read its documents
    22  6  expiry, milliseconds since 1970; 0 for never; 1, which is past, if the key is revoked
    28  29 an entry for each API key with this hash: short id (22), state (`A` active, `R` revoked), expiry (6); sorted
           by the bytes of the id

Usually there is one entry. If there are several, the key is revoked if any of them is, and otherwise expires with the
earliest of them. So the record depends on the newest event of each API key alone, and not on the order of events.
"""

import re
from datetime import UTC, datetime
from enum import IntEnum
from struct import Struct

import msgspec
from xxhash import xxh3_64_digest

STATE_LIVE = 76  # ord("L"): indexing bytes gives a number
STATE_TOMBSTONE = 84  # ord("T")
HEAD = 22
HEAD_FORMAT = "<c1I7I6I2I6"
"""State, version, offset, partition and time, for `struct.unpack` of Lua."""
STORED_HEAD = slice(0, HEAD)
VERSION = slice(1, 8)
HISTORY_BIT = 12
"""In the two bytes of the partition, the history of the topic begins at this bit."""
MAX_PARTITIONS = 1 << HISTORY_BIT
HISTORIES = 1 << (16 - HISTORY_BIT)
"""The number of histories of a topic that are told apart."""
PARTITION = slice(14, 16)
RECORD_TIME = slice(16, HEAD)
MAX_TIME = (1 << 48) - 1
NOWHERE = b"\xff" * 8
"""Offset and partition of a marker that stands for tombstones of several partitions, all of the same time."""
HASH_BYTES = 6
SHORT_ID = 22
"""Length of an id in names and indexes (`schemas.names.short_id`)."""
BODY_HASH = slice(22, 28)
SUMMARY_HASH = slice(28, 34)
ETAG = slice(22, 34)

LEAD_SUMMARY_PLACE = slice(34, 40)
"""Offset and length of the summary in the body, 3 bytes each."""
LEAD_BODY = 40
SUMMARY_FIELDS_STOP = slice(34, 37)
"""The offset at which the fields of the summary end in the body of a contact, 3 bytes."""
FIRST_LEAD = slice(37, 65)
CONTACT_BODY = 65
PLAIN_BODY = 34
"""The body of a resource without links begins here."""

# The ids come first in every body and have a fixed length, so that they are found by position.
BODY_ID = slice(0, 44)
BODY_ORGANIZATION_ID = slice(44, 101)
LEAD_CONTACT_ID = slice(116, 152)
"""In the body of a lead (`LEAD_BODY`)."""
STORED_CONTACT_ID = slice(LEAD_BODY + LEAD_CONTACT_ID.start, LEAD_BODY + LEAD_CONTACT_ID.stop)
"""In the stored value of a lead."""

NUMBER_BYTES = 3
JSON_START = b"{"
PACKED_LEAD = b"\0"
"""With this, the body of a lead that is compressed begins."""
BEFORE_PACKED_SUMMARY = b"("
"""With this in place of `{`, the body of a lead begins that is JSON but for its summary."""
PACKED_SUMMARY = 1 << 23
"""If the summary of a contact is packed, the number at 34 is its length plus this."""
BODY_OPENING = slice(0, 1)
"""The byte that says what a body is."""

PUT_LEAD_PREFIX = BODY_HASH.stop
"""What the projector sends of a value before the body: of a lead, without what depends on its contact."""
PUT_CONTACT_PREFIX = SUMMARY_FIELDS_STOP.stop
CONTACT_FORMAT = "<c6I3c28c44"
"""What a lead needs of its contact, from `SUMMARY_HASH` on: this, `SUMMARY_FIELDS_STOP`, `FIRST_LEAD` and `BODY_ID`."""

JOB_DUE = slice(22, 23)
JOB_NONE, JOB_ERASE, JOB_REPLAY = b"-", b"E", b"R"
ACCESS = slice(23, 24)
ACCESS_ON, ACCESS_OFF = b"1", b"0"
LIMITS = slice(24, 40)
API_KEY_HASH = 22
NAME_TAG = slice(4, 26)
"""In the name of an organization's record: its id in base62, which is the hash tag (`schemas.names`)."""
KEY_ORGANIZATION = slice(0, 22)
"""In the record that the API looks up by the hash of a key, which has no head."""
KEY_EXPIRY = slice(22, 28)
KEY_ENTRIES = 28
KEY_ENTRY = 29
"""The length of each entry."""
KEY_ENTRY_ID = slice(0, SHORT_ID)
KEY_ENTRY_STATE = slice(SHORT_ID, SHORT_ID + 1)
KEY_ACTIVE, KEY_REVOKED = b"A", b"R"
KEY_ENTRY_EXPIRY = slice(SHORT_ID + 1, KEY_ENTRY)

WHOLE = slice(0, 65_536)
"""A document's value that ends before this does is read together with key, access and limits. A longer one is read by
itself, over a connection for such values, so that no reply holds up the small ones."""
PART = 65_536
"""It is read in parts of this number of bytes, so that neither Redis nor the API is busy with it for long."""
CERTAIN = slice(0, 128)
"""The first bytes of a value differ whenever anything in it does: head, both hashes, a contact's first lead, and how
the body is stored. So a value whose first bytes are unchanged was not written meanwhile."""

STALE, WRITTEN, ORGANIZATION_DELETED = 0, 1, 2
"""What a script replies about an entity."""
OLDER, REUSED = 3, 4
"""What it replies in place of STALE if the record comes behind that of the stored event in the same partition, although
its version is lower; or has the same version, and says something else. Compaction would keep that record alone."""
REPEATED = 5
"""What it replies in place of STALE if such a record repeats the stored event."""
ERASE_DUE, REPLAY_DUE = 8, 16
"""What is added for an organization whose job is due."""
CONTROL_CHANGED = "stamp"
"""What the script of a checkpoint replies if the control record is not the one that the session was opened with."""


class Outcome(IntEnum):
    """What the script of a request replies, in the order of its checks. `api/documents.py` numbers them by rows."""

    BEING_APPLIED = 1
    """The records of a recreated organization have not all been applied again."""
    KEY_REFUSED = 2
    """Row 5: the key is unknown, revoked or expired."""
    NO_ACCESS = 3
    """Row 6: the organization has no access to the API."""
    LIMITED = 4
    """Row 7: a rate limit does not allow the request."""
    NO_ID = 5
    """Row 8: the request names no record."""
    MISSING = 6
    """Row 9: there is no such record."""
    UNCHANGED = 7
    """Row 10: the request has the present ETag."""
    SERVED = 8
    LARGE = 9
    """It is charged as if it were served, but the caller has to read the document by itself."""


BUCKET_SPAN = 10_000_000
"""The bucket of a rate limit expires at the end of this span, in microseconds, in which it will be full again."""

NO_CONTACT = bytes(HASH_BYTES)
NO_LEAD = bytes(FIRST_LEAD.stop - FIRST_LEAD.start)
NO_ETAG = bytes(ETAG.stop - ETAG.start)
"""In place of the ETag of a record that does not exist."""
_HEAD = Struct("<QQQ")
_LIMITS = Struct("<IIII").unpack
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_FOR_LUA = (
    *("PUT_LEAD_PREFIX", "PUT_CONTACT_PREFIX", "CONTACT_FORMAT", "STORED_HEAD"),
    *("PARTITION", "RECORD_TIME", "NOWHERE", "NO_CONTACT", "NO_LEAD", "NO_ETAG"),
    *("PLAIN_BODY", "BUCKET_SPAN"),
    *(
        "HEAD",
        "HEAD_FORMAT",
        "VERSION",
        "BODY_HASH",
        "HASH_BYTES",
        "SHORT_ID",
        "SUMMARY_HASH",
        "ETAG",
        "LEAD_SUMMARY_PLACE",
    ),
    *("LEAD_BODY", "SUMMARY_FIELDS_STOP", "FIRST_LEAD", "CONTACT_BODY", "BODY_ID", "BODY_ORGANIZATION_ID"),
    *("LEAD_CONTACT_ID", "STORED_CONTACT_ID", "JOB_DUE", "ACCESS", "LIMITS", "NAME_TAG", "KEY_ORGANIZATION"),
    *("BODY_OPENING", "PACKED_SUMMARY", "WHOLE", "KEY_EXPIRY"),
    *("STATE_LIVE", "STATE_TOMBSTONE", "JOB_NONE", "JOB_ERASE", "JOB_REPLAY", "ACCESS_ON", "KEY_REVOKED"),
    *("STALE", "WRITTEN", "ORGANIZATION_DELETED", "OLDER", "REUSED", "REPEATED", "ERASE_DUE", "REPLAY_DUE"),
    "CONTROL_CHANGED",
    *("KEY_ENTRIES", "KEY_ENTRY", "KEY_ENTRY_ID", "KEY_ENTRY_STATE", "KEY_ENTRY_EXPIRY"),
)


def with_constants(script: str) -> str:
    """Returns a script in Lua with the constants of this module in place of their names.

    A slice is two constants there, NAME and NAME_END: the first and the last byte, counted from 1, as `string.sub`
    takes them. NAME_AT and NAME_LAST are the same counted from 0, as text, as SETRANGE and GETRANGE take them: Redis
    formats numbers slowly. Therefore NAME_TEXT is a number as text. NAME_BYTE is the number of a single byte.
    """
    # As literals, they cost nothing: a script that declares its constants does so again in each call.
    return _CONSTANT.sub(lambda match: _CONSTANTS[match[0]], script)


def _lua_constants() -> dict[str, str]:
    constants: dict[str, str] = {}
    for name in _FOR_LUA:
        match globals()[name]:
            case slice(start=start, stop=stop):
                constants |= {
                    name: str(start + 1),
                    f"{name}_END": str(stop),
                    f"{name}_AT": f"'{start}'",
                    f"{name}_LAST": f"'{stop - 1}'",
                }
            case bytes(text):
                constants[name] = "'" + text.decode("latin-1").replace("\0", r"\0").replace("\xff", r"\255") + "'"
                constants |= {f"{name}_BYTE": str(text[0])} if len(text) == 1 else {}
            case int(number):
                constants |= {name: str(number), f"{name}_TEXT": f"'{number}'"}
            case text:
                constants[name] = f"'{text}'"
    return constants | {outcome.name: str(outcome.value) for outcome in Outcome}


_CONSTANTS = _lua_constants()
_CONSTANT = re.compile(rf"\b(?:{'|'.join(_CONSTANTS)})\b")


class Head(msgspec.Struct, frozen=True):
    """The first 22 bytes of a value: the state, and the newest event that was applied."""

    live: bool
    version: int
    offset: int
    partition: int
    time: int
    """Milliseconds since 1970."""
    history: int = 0
    """Which history of the topic the offset belongs to."""


def read_head(value: bytes) -> Head:
    """Read the head of any entity's value. Raises ValueError if the value is too short."""
    if len(value) < HEAD:
        raise ValueError(f"a value of {len(value)} bytes does not begin with a head")
    number = int.from_bytes
    return Head(
        value[0] == STATE_LIVE,
        number(value[VERSION], "little"),
        number(value[8:14], "little"),
        number(value[14:16], "little") % MAX_PARTITIONS,
        number(value[RECORD_TIME], "little"),
        number(value[14:16], "little") >> HISTORY_BIT,
    )


def read_limits(value: bytes) -> tuple[int, int, int, int]:
    """Returns key quota, key window, organization quota and organization window from the record of an organization;
    zeros for a limit that is that of the settings. Raises struct.error if the record has none.
    """
    found: tuple[int, int, int, int] = _LIMITS(value[LIMITS])
    return found


def write_head(state: bytes, version: int, offset: int, partition: int, time: int) -> bytes:
    """Returns the bytes that `read_head` reads. `state` is `L`, `D` or `T`. A negative `time` becomes 0, and one that
    does not fit into 48 bits the highest one that does.
    """
    # Packing three numbers of 8 bytes takes a third of the time of five numbers of odd lengths. max() would be a call.
    if not 0 <= time <= MAX_TIME:
        time = 0 if time < 0 else MAX_TIME
    return _HEAD.pack(state[0] | version << 8, offset | partition << 48, time)[:HEAD]


def key_validity(*, revoked: bool, expiry: int) -> bytes:
    """Returns the state and the expiry of an API key as its entry holds them. `expiry` is in milliseconds since 1970; 0
    for never.
    """
    return (KEY_REVOKED if revoked else KEY_ACTIVE) + expiry.to_bytes(6, "little")


def content_hash(content: bytes) -> bytes:
    """Returns six bytes that change whenever the content does. They are never all zeros, which mean "no contact"."""
    digest = xxh3_64_digest(content)[:HASH_BYTES]
    return digest if digest != NO_CONTACT else b"\1" + NO_CONTACT[1:]


def milliseconds(time: datetime) -> int:
    """Returns milliseconds since 1970, which fit into the 48 bits of a head. A time before 1970 becomes 0."""
    since = time - _EPOCH
    found = since.days * 86_400_000 + since.seconds * 1000 + since.microseconds // 1000
    return found if found > 0 else 0  # noqa: FURB136
