"""The names of all keys in Redis. No other module composes them.

Each begins with the number of the layout, so programs of different layouts never meet: each sees its own keys only.

All names of an organization share its hash tag, so that a script may use them together on a Redis Cluster:

    lv3{<organization>}                    organization: access and limits, or the marker of a deleted one
    lv3{<organization>}k<hash>             what the API knows of a key, by its SHA-256 (hex), from all API keys with it
    lv3{<organization>}a<id>               API key, by its id: head and hash, or the marker of a deleted one
    lv3{<organization>}q                   rate limit of the organization (expires)
    lv3{<organization>}q<hash>             rate limit of a key (expires)
    lv3{<organization>}u                   hash: the use of each key, by its SHA-256: requests, refusals, times of its
                                           last and its first request (expires)
    lv3{<organization>}<generation>l<id>   lead document, or the marker of a deleted one; other resources have other
                                           letters (`schemas.resources`): `c` is a contact
    lv3{<organization>}<generation>i<id>   leads of a contact except the first, which is stored in the contact's value:
                                           sorted set of lead ids; the score is the hash of the summary in the lead

`<organization>` is the UUID in 22 base62 characters, as in API keys; `<id>` is a UUID in 22 base64 characters.
`<generation>` is its whole identity, such as `2.k3x9Qz` (`schemas.control.GenerationId`). Names are short to save
memory: up to 60 bytes fit into an allocation of 64 bytes. These keys belong to no organization:

    lv3{ledger}:control            hash: the control record, with the checkpoint of each partition (`schemas.control`)
    lv3{ledger}:rebuild:<generation>   hash: positions of the replay that fills a generation, and its end offsets
    lv3{ledger}:as-of              up to which moment everything that Kafka held is visible, in ms since 1970 (expires)
    lv3{ledger}:complete           hash: the last sample that each topic has reached, in ms since 1970
    lv3{ledger}:evictions          hash: how many keys each server had evicted when it was asked last
    lv3{ledger}:erasures           hash: how far the pass of the erasures has come
    lv3{ledger}:history            stream: what operators did, the latest 1000 acts (`projector/ledger/acts.py`)
    lv3{ledger}:writers            hash: the programs that write, and when each of them was last alive
    lv3{ledger}:dead-letters       hash: records that could not be applied, `<topic>:<partition>:<offset>`
    lv3{ledger}:late-versions      hash: entities whose last record is not their newest, `<topic>:<message key>`, and a
                                   count of others, `<topic>`, each with the topic without its prefix
    lv3:latency                     hash: the latest latencies that each API worker measured
    lv3:tasks                       set: jobs that must survive a crash (`projector/upkeep/jobs.py`)
    lv3:task:{<organization>}:<verb>  the projector that runs the job right now (expires)
    lv3:task:accept                 the process that changes which bad records are accepted (expires)
    lv3:task:compare:access         the projector that compares access with the topics right now (expires); and
                                   `…:documents`
    lv3{ledger}:comparison:access   which parts of the organizations are still to be compared; and `…:documents`

A checkpoint writes positions and dead letters in one script, so they share a hash tag as well. On a cluster each shard
has a copy of the control record, `lv3{<number>}:control` (and `…:rebuild:<generation>`, `…:as-of`); `slot_tag` chooses
the number.
"""

import re
from binascii import a2b_base64, b2a_base64, crc_hqx, unhexlify
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import count
from uuid import UUID

from schemas import base62
from schemas.api_keys import organization_tag
from schemas.control import LAYOUT, GenerationId
from schemas.layouts import SHORT_ID
from schemas.resources import CONTACT, RESOURCES, Resource

SLOTS = 16_384
HOME = b"ledger"
"""The hash tag of the keys that exist only once, whatever the number of shards, and of the first of several copies."""

PREFIX = b"lv%d" % LAYOUT
"""Every name begins with this, and then `{` or `:`."""
_START = PREFIX + b"{"
CONTROL = PREFIX + b"{ledger}:control"
AS_OF = PREFIX + b"{ledger}:as-of"
COMPLETE = PREFIX + b"{ledger}:complete"
EVICTIONS = PREFIX + b"{ledger}:evictions"
HISTORY = PREFIX + b"{ledger}:history"
WRITERS = PREFIX + b"{ledger}:writers"
LATENCY = PREFIX + b":latency"
DEAD_LETTERS = PREFIX + b"{ledger}:dead-letters"
LATE_VERSIONS = PREFIX + b"{ledger}:late-versions"
JOBS = PREFIX + b":tasks"
ACCEPT_LOCK = PREFIX + b":task:accept"

OF_OTHER_LAYOUTS = {
    b"lv:generations": 1,
    b"lv:{ledger}:positions": 1,
    b"lv:{ledger}:control": 2,
    **{b"lv%d{ledger}:control" % layout: layout for layout in range(3, LAYOUT + 10) if layout != LAYOUT},
}
"""The layouts of other programs, by a key that each of them stores. Until layout 2, all names began with `lv:`."""


def short_id(uuid: str) -> bytes:
    """Returns a UUID as 22 base64 characters. Python has base64 in C, which is five times as fast as our base62."""
    return b2a_base64(unhexlify(uuid.replace("-", "")))[:SHORT_ID]


def short_ids(uuids: Iterable[str]) -> list[bytes]:
    """Returns what `short_id` returns of each of these UUIDs, in two thirds of the time."""
    # With two bytes between them, each begins with a character of its own.
    text = b2a_base64(unhexlify("0000".join(uuids).encode().replace(b"-", b"")))
    return [text[at : at + SHORT_ID] for at in range(0, len(text) - 1, SHORT_ID + 2)]


def long_id(short: bytes) -> str:
    """Returns the canonical UUID that `short_id` encoded."""
    return str(UUID(bytes=a2b_base64(short + b"==")))


@lru_cache(maxsize=65536)
def organization(organization_id: str) -> bytes:
    """Returns the name of the organization's record, with which all its other names begin."""
    return tagged(organization_tag(organization_id))


def tagged(tag: str) -> bytes:
    """Returns the same as `organization`, from the 22 characters inside an API key."""
    return b"%b%b}" % (_START, tag.encode())


def organization_id(owner: bytes) -> str:
    """Returns the UUID that `organization` encoded."""
    return str(UUID(int=base62.decode(owner[len(_START) : -1].decode())))


@cache
def _text(generation: GenerationId) -> bytes:
    """Returns the identity of a generation as it stands in names."""
    return generation.encode()


def api_key(owner: bytes, key_hash: str) -> bytes:
    return owner + b"k" + key_hash.encode()


def api_key_entity(owner: bytes, key_id: str) -> bytes:
    return owner + b"a" + short_id(key_id)


def api_key_entities(owner: bytes, keys: Iterable[bytes]) -> list[bytes]:
    """Returns those of these names that `api_key_entity` returns."""
    start = owner + b"a"
    return [key for key in keys if key.startswith(start)]


def organization_limit(owner: bytes) -> bytes:
    return owner + b"q"


def key_limit(owner: bytes, key_hash: str) -> bytes:
    return owner + b"q" + key_hash.encode()


def usage(owner: bytes) -> bytes:
    return owner + b"u"


def owner_of_key(name: bytes) -> bytes:
    """Returns the name of the organization from a name that `api_key` returned."""
    return name[: name.index(b"}") + 1]


def hash_of_key(name: bytes) -> str:
    """Returns the hash of a key from a name that `api_key` returned."""
    return name.rpartition(b"}k")[2].decode()


def document(resource: Resource, owner: bytes, generation: GenerationId, entity_id: str) -> bytes:
    """Returns the name of a document, or of the marker of a deleted one."""
    return b"%b%b%b%b" % (owner, _text(generation), resource.letter, short_id(entity_id))


_LETTERS = b"".join(resource.letter for resource in RESOURCES) + b"i"
IN_GENERATION = re.compile(
    rb"(%b\{[0-9A-Za-z]{22}\})([1-9]\d*\.[0-9A-Za-z]{6})([%b])(.{22})" % (PREFIX, _LETTERS), re.DOTALL
)
"""A name in a generation: owner, generation, letter of the resource (`i` for an index), short id."""


def generation_of(name: bytes) -> GenerationId:
    """Returns the generation of a name that `document` returned."""
    match = IN_GENERATION.fullmatch(name)
    if not match:
        raise ValueError(f"not a name in a generation: {name!r}")
    return GenerationId(match[2].decode())


OF_ACCESS = re.compile(rb"(%b\{[0-9A-Za-z]{22}\})(?:a(.{22})|k([0-9a-f]{64}))?" % PREFIX, re.DOTALL)
"""A name that the access of an organization consists of: owner, then the short id of an API key, or the hash of a key,
or nothing, if it is the record of the organization itself."""

ALL = PREFIX + b"{*}*"
"""The pattern of all names with a hash tag."""


def of_generation(generation: GenerationId) -> bytes:
    """Returns the pattern of all names in a generation."""
    return b"%b{*}%b[%b]*" % (PREFIX, _text(generation), _LETTERS)


def of_organization(owner: bytes) -> bytes:
    """Returns the pattern of all names of an organization except that of its own record."""
    return owner + b"?*"


def in_generations(
    resource: Resource, documents: Iterable[tuple[bytes, bytes]], generations: Iterable[GenerationId]
) -> list[bytes]:
    """Returns the names of documents in each generation; of a contact, the index of its leads follows each name. A
    document is the name of its organization, and its short id.
    """
    letters = (b"c", b"i") if resource is CONTACT else (resource.letter,)
    middles = [_text(generation) + letter for generation in generations for letter in letters]
    return [owner + middle + short_id for owner, short_id in documents for middle in middles]


def contact_with_leads(owner: bytes, generation: GenerationId, contact_id: bytes) -> list[bytes]:
    """Returns the names of a contact and of the index of its leads, from a short id."""
    start = owner + _text(generation)
    return [start + b"c" + contact_id, start + b"i" + contact_id]


def contact_leads(owner: bytes, generation: GenerationId, contact_id: str) -> bytes:
    return b"%b%bi%b" % (owner, _text(generation), short_id(contact_id))


def position(topic: str, partition: int) -> str:
    return f"{topic}:{partition}"


def dead_letter(topic: str, partition: int, offset: int) -> str:
    return f"{topic}:{partition}:{offset}"


def late_version(topic: str, message_key: str) -> str:
    """Returns the field of an entity in `LATE_VERSIONS`. `topic` is without its prefix."""
    return f"{topic}:{message_key}"


def rebuild(generation: GenerationId) -> bytes:
    return b"%b{ledger}:rebuild:%b" % (PREFIX, _text(generation))


def copy(ledger: bytes, tag: bytes) -> bytes:
    """Returns the name of the copy of a key under another hash tag. There are copies of `CONTROL`, `rebuild`, `AS_OF`,
    `COMPLETE` and `EVICTIONS`.
    """
    return ledger.replace(b"{%b}" % HOME, b"{%b}" % tag)


def tag_slot(tag: bytes) -> int:
    """Returns the cluster slot of keys with this hash tag."""
    return crc_hqx(tag, 0) % SLOTS


def tag(key: bytes) -> bytes:
    """Returns what decides the cluster slot of a key: its hash tag, or the whole name if it has none."""
    inside, end, _ = key.partition(b"{")[2].partition(b"}")
    return inside if inside and end else key


def slot_tag(slot: int) -> bytes:
    """Returns a hash tag whose keys are in this slot: the smallest number that hashes to it."""
    return _slot_tags()[slot]


@cache
def _slot_tags() -> list[bytes]:
    found: dict[int, bytes] = {}
    for number in count():
        tag = b"%d" % number
        found.setdefault(tag_slot(tag), tag)
        if len(found) == SLOTS:
            return [found[slot] for slot in range(SLOTS)]
    raise AssertionError


def target(topic: str, partition: int) -> str:
    """Returns the field of a rebuild's ledger that holds the end offset of a partition's replay."""
    return f"target:{topic}:{partition}"


def comparison(subject: str) -> bytes:
    """Returns the name of what is left of the comparison of this subject, `access` or `documents`."""
    return b"%b{ledger}:comparison:%b" % (PREFIX, subject.encode())


def comparison_lock(subject: str) -> bytes:
    """Returns the name of the lock of this comparison."""
    return b"%b:task:compare:%b" % (PREFIX, subject.encode())


ERASURES = PREFIX + b"{ledger}:erasures"
"""A hash: for each server of Redis, how far its keys were looked through for those of deleted organizations."""

DUTY_LOCK = b"%b:task:duty" % PREFIX
"""The lock of the projector that does what one does for all."""


def job_lock(verb: str, organization_id: str) -> bytes:
    """Returns the name of a job's lock. It is in the slot of the organization, but is not one of its names."""
    owner = organization(organization_id).removeprefix(PREFIX)
    return b"%b:task:%b:%b" % (PREFIX, owner, verb.encode())
