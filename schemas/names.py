"""The one place that makes names of keys in Redis.

All names of an organization share its hash tag, so that every script is legal on a Redis Cluster:

    lv:{<organization>}                    organization: access and limits, or the marker of a deleted one
    lv:{<organization>}k<hash>             active API key, by the SHA-256 of the key (hex)
    lv:{<organization>}a<id>               API key entity, by its id: version and hash
    lv:{<organization>}q                   rate limit of the organization (expires)
    lv:{<organization>}q<hash>             rate limit of a key (expires)
    lv:{<organization>}<generation>l<id>   lead document, or the marker of a deleted one
    lv:{<organization>}<generation>c<id>   contact document, or marker
    lv:{<organization>}<generation>i<id>   leads of a contact but for the first, which stands in the contact's value:
                                           sorted set, lead id by mark of the summary shown

`<organization>` is the UUID in 22 base62 characters, as in API keys; `<id>` is a UUID in 22 base64 characters.
Short names are worth it: 52 bytes or fewer fit jemalloc's class of 56. The rest belongs to no organization:

    lv:generations                 hash: which generation is served, and what is known of each
    lv:{ledger}:positions          hash: the checkpoint of each partition, `<topic>:<partition>`
    lv:{ledger}:rebuild:<number>   hash: positions of the replay that fills a generation, and where each ends
    lv:{ledger}:dead-letters       hash: records that could not be applied, `<topic>:<partition>:<offset>`
    lv:latency                     hash: what the API's workers last measured, by worker
    lv:tasks                       set: jobs that must survive a crash (`erase <organization>`, `replay <organization>`)
    lv:task:<job>                  which projector runs it right now (expires)

A checkpoint writes positions and dead letters in one script, so they share a hash tag as well. On a cluster each shard
has a copy of the positions, `lv:{<number>}:positions` (and `…:rebuild:<number>`): the number is that of `slot_tag`.
"""

import re
from binascii import a2b_base64, b2a_base64, crc_hqx
from functools import cache, lru_cache
from itertools import count
from uuid import UUID

from schemas import base62
from schemas.api_keys import organization_tag
from schemas.layouts import SHORT_ID
from schemas.resources import RESOURCES, Resource

SLOTS = 16_384
HOME = b"ledger"
"""The hash tag of what there is one of, whatever the number of shards."""

PREFIX = b"lv:"
_START = b"lv:{"
GENERATIONS = b"lv:generations"
POSITIONS = b"lv:{ledger}:positions"
COPIES = "copies"
"""The field of a ledger's copy that names all of them: their hash tags, with spaces between."""
LATENCY = b"lv:latency"
DEAD_LETTERS = b"lv:{ledger}:dead-letters"
JOBS = b"lv:tasks"


def short_id(uuid: str) -> bytes:
    """A canonical UUID in 22 base64 characters; b64 in C is five times as fast as base62 in Python."""
    return b2a_base64(bytes.fromhex(uuid.replace("-", "")))[:SHORT_ID]


def long_id(short: bytes) -> str:
    """The canonical UUID that `short_id` was made of."""
    return str(UUID(bytes=a2b_base64(short + b"==")))


@lru_cache(maxsize=65536)
def organization(organization_id: str) -> bytes:
    """The organization's record, and the start of all its other names."""
    return tagged(organization_tag(organization_id))


def tagged(tag: str) -> bytes:
    """`organization`, from the 22 characters inside an API key."""
    return b"%b%b}" % (_START, tag.encode())


def organization_id(owner: bytes) -> str:
    """The UUID that `organization` was made of."""
    return str(UUID(int=base62.decode(owner[len(_START) : -1].decode())))


def api_key(owner: bytes, key_hash: str) -> bytes:
    return owner + b"k" + key_hash.encode()


def api_key_entity(owner: bytes, key_id: str) -> bytes:
    return owner + b"a" + short_id(key_id)


def organization_limit(owner: bytes) -> bytes:
    return owner + b"q"


def key_limit(owner: bytes, key_hash: str) -> bytes:
    return owner + b"q" + key_hash.encode()


def document(resource: Resource, owner: bytes, generation: int, entity_id: str) -> bytes:
    """A document of a resource, or the marker of a deleted one."""
    return b"%b%d%b%b" % (owner, generation, resource.letter, short_id(entity_id))


_LETTERS = b"".join(resource.letter for resource in RESOURCES) + b"i"
IN_GENERATION = re.compile(rb"(lv:\{[0-9A-Za-z]{22}\})(\d+)([%b])(.{22})" % _LETTERS, re.DOTALL)
"""A name of a generation: owner, generation, letter of the resource (`i` for an index), short id."""


def of_generation(generation: int) -> bytes:
    """The pattern of all names of a generation."""
    return b"lv:{*}%d[%b]*" % (generation, _LETTERS)


def of_organization(owner: bytes) -> bytes:
    """The pattern of all names of an organization but its own record's."""
    return owner + b"?*"


def document_by_short_id(resource: Resource, owner: bytes, generation: int, entity_id: bytes) -> bytes:
    return b"%b%d%b%b" % (owner, generation, resource.letter, entity_id)


def lead_with_contact(owner: bytes, generation: int, lead_id: bytes, contact_id: bytes) -> list[bytes]:
    """A lead, its contact and the contact's leads, from short ids: the hot path makes each id once."""
    start = b"%b%d" % (owner, generation)
    return [start + b"l" + lead_id, start + b"c" + contact_id, start + b"i" + contact_id]


def contact_with_leads(owner: bytes, generation: int, contact_id: bytes) -> list[bytes]:
    """A contact and the contact's leads, from a short id."""
    start = b"%b%d" % (owner, generation)
    return [start + b"c" + contact_id, start + b"i" + contact_id]


def contact_leads(owner: bytes, generation: int, contact_id: str) -> bytes:
    return b"%b%di%b" % (owner, generation, short_id(contact_id))


def position(topic: str, partition: int) -> str:
    return f"{topic}:{partition}"


def dead_letter(topic: str, partition: int, offset: int) -> str:
    return f"{topic}:{partition}:{offset}"


def rebuild(generation: int) -> bytes:
    return b"lv:{ledger}:rebuild:%d" % generation


def copy(ledger: bytes, tag: bytes) -> bytes:
    """The copy of a ledger (`POSITIONS`, `rebuild`) under another hash tag."""
    return ledger.replace(b"{%b}" % HOME, b"{%b}" % tag)


def tag_slot(tag: bytes) -> int:
    """The slot of a cluster that keys with this hash tag lie in."""
    return crc_hqx(tag, 0) % SLOTS


def slot_tag(slot: int) -> bytes:
    """A hash tag whose keys lie in this slot: the smallest number."""
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
    """The field of a rebuild's ledger that says where the replay of a partition ends."""
    return f"target:{topic}:{partition}"


def job_lock(job: str) -> bytes:
    return b"lv:task:%b" % job.encode()
