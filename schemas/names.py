"""The names of all keys in Redis. No other module composes them.

All names of an organization share its hash tag, so that a script may use them together on a Redis Cluster:

    lv:{<organization>}                    organization: access and limits, or the marker of a deleted one
    lv:{<organization>}k<hash>             what the API knows of a key, by its SHA-256 (hex), from all API keys with it
    lv:{<organization>}a<id>               API key, by its id: head and hash, or the marker of a deleted one
    lv:{<organization>}q                   rate limit of the organization (expires)
    lv:{<organization>}q<hash>             rate limit of a key (expires)
    lv:{<organization>}u                   hash: the use of each key, by its SHA-256: requests, refusals, times of its
                                           last and its first request (expires)
    lv:{<organization>}<generation>l<id>   lead document, or the marker of a deleted one; other resources have other
                                           letters (`schemas.resources`): `c` is a contact
    lv:{<organization>}<generation>i<id>   leads of a contact except the first, which is stored in the contact's value:
                                           sorted set of lead ids; the score is the hash of the summary in the lead

`<organization>` is the UUID in 22 base62 characters, as in API keys; `<id>` is a UUID in 22 base64 characters.
Names are short to save memory: up to 52 bytes fit into an allocation of 56 bytes. These keys belong to no organization:

    lv:{ledger}:control            hash: the control record, with the checkpoint of each partition (`schemas.control`)
    lv:{ledger}:rebuild:<number>   hash: positions of the replay that fills a generation, and its end offsets
    lv:{ledger}:writers            hash: the programs that write, and when each of them was last alive
    lv:{ledger}:dead-letters       hash: records that could not be applied, `<topic>:<partition>:<offset>`
    lv:latency                     hash: the latest latencies that each API worker measured
    lv:tasks                       set: jobs that must survive a crash, `erase <organization> <event>` and
                                   `replay <organization> <event>` (`projector/upkeep/jobs.py`)
    lv:task:{<organization>}:<verb>  the projector that runs the job right now (expires)
    lv:task:accept                 the process that changes which bad records are accepted (expires)

A checkpoint writes positions and dead letters in one script, so they share a hash tag as well. On a cluster each shard
has a copy of the control record, `lv:{<number>}:control` (and `…:rebuild:<number>`); `slot_tag` chooses the number.
"""

import re
from binascii import a2b_base64, b2a_base64, crc_hqx, unhexlify
from collections.abc import Iterable
from functools import cache, lru_cache
from itertools import count
from uuid import UUID

from schemas import base62
from schemas.api_keys import organization_tag
from schemas.layouts import SHORT_ID
from schemas.resources import RESOURCES, Resource

SLOTS = 16_384
HOME = b"ledger"
"""The hash tag of the keys that exist only once, whatever the number of shards."""

PREFIX = b"lv:"
_START = b"lv:{"
CONTROL = b"lv:{ledger}:control"
WRITERS = b"lv:{ledger}:writers"
OF_OTHER_LAYOUTS = (b"lv:generations", b"lv:{ledger}:positions")
"""Keys that Leadview stored before the control record existed."""
LATENCY = b"lv:latency"
DEAD_LETTERS = b"lv:{ledger}:dead-letters"
JOBS = b"lv:tasks"
ACCEPT_LOCK = b"lv:task:accept"


def short_id(uuid: str) -> bytes:
    """Returns a UUID as 22 base64 characters. Python has base64 in C, which is five times as fast as our base62."""
    return b2a_base64(unhexlify(uuid.replace("-", "")))[:SHORT_ID]


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
def _digits(generation: int) -> bytes:
    """Returns the number of a generation as text. To format it takes three times as long as to find it here."""
    return b"%d" % generation


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


def document(resource: Resource, owner: bytes, generation: int, entity_id: str) -> bytes:
    """Returns the name of a document, or of the marker of a deleted one."""
    return b"%b%d%b%b" % (owner, generation, resource.letter, short_id(entity_id))


_LETTERS = b"".join(resource.letter for resource in RESOURCES) + b"i"
IN_GENERATION = re.compile(rb"(lv:\{[0-9A-Za-z]{22}\})(\d+)([%b])(.{22})" % _LETTERS, re.DOTALL)
"""A name in a generation: owner, generation, letter of the resource (`i` for an index), short id."""

OF_ACCESS = re.compile(rb"(lv:\{[0-9A-Za-z]{22}\})(?:a(.{22})|k([0-9a-f]{64}))?", re.DOTALL)
"""A name that the access of an organization consists of: owner, then the short id of an API key, or the hash of a key,
or nothing, if it is the record of the organization itself."""

ALL = b"lv:{*}*"
"""The pattern of all names with a hash tag."""


def of_generation(generation: int) -> bytes:
    """Returns the pattern of all names in a generation."""
    return b"lv:{*}%d[%b]*" % (generation, _LETTERS)


def of_organization(owner: bytes) -> bytes:
    """Returns the pattern of all names of an organization except that of its own record."""
    return owner + b"?*"


def document_by_short_id(resource: Resource, owner: bytes, generation: int, entity_id: bytes) -> bytes:
    return b"%b%d%b%b" % (owner, generation, resource.letter, entity_id)


def lead_with_contact(owner: bytes, generation: int, lead_id: bytes, contact_id: bytes) -> list[bytes]:
    """Returns the names of a lead, its contact and the index of the contact's leads.

    The parameters are short ids, so that a caller with several generations encodes each id only once.
    """
    start = owner + _digits(generation)
    return [start + b"l" + lead_id, start + b"c" + contact_id, start + b"i" + contact_id]


def contact_with_leads(owner: bytes, generation: int, contact_id: bytes) -> list[bytes]:
    """Returns the names of a contact and of the index of its leads, from a short id."""
    start = owner + _digits(generation)
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
    """Returns the name of the copy of a ledger (`CONTROL`, `rebuild`) under another hash tag."""
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


def job_lock(verb: str, organization_id: str) -> bytes:
    """Returns the name of a job's lock. It is in the slot of the organization, but is not one of its names."""
    return b"lv:task:%b:%b" % (organization(organization_id).removeprefix(PREFIX), verb.encode())
