"""Reads an organization or an API key as the API sees it, and says which check of the API would refuse it, and why.

The checks are the rows of the contract's table of HTTP answers. Nothing here contains or returns a key.
"""

import re
import time
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from projector.commands.refusal import Bucket, Refusal, refusal_of_key, refusal_of_organization
from projector.dead_letter import DeadLetter
from projector.ledger import copies
from projector.redis.store import Store
from projector.upkeep.redrive import all_dead_letters
from schemas import api_keys, names
from schemas.layouts import (
    ACCESS,
    API_KEY_HASH,
    HEAD,
    JOB_DUE,
    JOB_ERASE,
    JOB_REPLAY,
    KEY_ENTRIES,
    KEY_ENTRY,
    KEY_ENTRY_EXPIRY,
    KEY_ENTRY_ID,
    KEY_ENTRY_STATE,
    KEY_REVOKED,
    LIMITS,
    Head,
    read_head,
    read_limits,
)
from schemas.settings import ApiSettings, Limit, limit

_COUNTED = ("active", "revoked")
_NAME = re.compile(rb"(%b\{[0-9A-Za-z]{22}\})[ak].*" % names.PREFIX, re.DOTALL)


class StoredOrganization(msgspec.Struct, frozen=True):
    """What Redis holds of an organization. `event` is the event that wrote it; None if there was none.

    `limits` are those that apply: the organization's own ones, or those of the settings.
    """

    organization: str
    name: str
    event: Head | None
    api_access: bool
    limits: list[Bucket]
    job_due: str | None
    """`erase` or `replay`: the keys and documents of the organization are being deleted, or read again."""
    refusal: Refusal | None
    dead_letters: list[DeadLetter] = []


class ApiKey(msgspec.Struct, frozen=True):
    """An API key that the core product has published.

    `status` is `active`, `revoked`, `deleted`, or `unknown` if the record of its hash does not list it.
    `expires_at` is in milliseconds since 1970; None for never.
    """

    id: str
    status: str
    event: Head | None = None
    expires_at: int | None = None


class StoredKey(msgspec.Struct, frozen=True):
    """What Redis holds of a key: the organization that it may read, and the API keys that have its hash."""

    hash: str | None
    organization: StoredOrganization | None
    api_keys: list[ApiKey]
    refusal: Refusal | None
    """The first check that would refuse a request with this key; None if none would."""
    dead_letters: list[DeadLetter] = []


class Place(NamedTuple):
    """Where a key is stored: the name of its organization, and its hash or the id of the API key."""

    owner: bytes
    hash: str | None = None
    id: str | None = None


async def read_organization(store: Store, settings: ApiSettings, organization_id: str) -> StoredOrganization:
    """Read an organization. Raises Refused if Redis is empty, and Unavailable."""
    complete = (await copies.require(store)).serves
    found = await _read_organization(store, settings, names.organization(organization_id), complete)
    dead_letters = [letter for letter in await all_dead_letters(store) if letter.key == organization_id]
    return msgspec.structs.replace(found, dead_letters=dead_letters)


async def find(store: Store, *, key_hash: str = "", key_id: str = "") -> list[Place]:
    """Returns where a key with this hash, or an API key with this id, is stored. It looks at every name in Redis.

    There is at most one place, unless the core product has given two organizations the same key. Raises Unavailable.
    """
    end = b"k" + key_hash.encode() if key_hash else b"a" + names.short_id(key_id)
    owners: set[bytes] = set()
    async for keys in store.scan(names.ALL + end):
        owners.update(match[1] for match in map(_NAME.fullmatch, keys) if match)
    return [Place(owner, key_hash or None, key_id or None) for owner in sorted(owners)]


async def not_stored(store: Store) -> Refusal | None:
    """Returns why the API refuses a key that is stored nowhere. Raises Refused if Redis is empty, and Unavailable."""
    complete = (await copies.require(store)).serves
    unavailable = None if complete else refusal_of_organization(None, api_access=False, replaying=False, complete=False)
    return refusal_of_key(unavailable, [], [], 0)


async def read_key(store: Store, settings: ApiSettings, place: Place) -> StoredKey:
    """Read a key. Raises Refused if Redis is empty, and Unavailable."""
    complete = (await copies.require(store)).serves
    key_hash = place.hash
    if place.id is not None:
        value = await _get(store, names.api_key_entity(place.owner, place.id))
        key_hash = value[API_KEY_HASH:].decode() or None
    organization = await _read_organization(store, settings, place.owner, complete, key_hash)
    record = await _get(store, names.api_key(place.owner, key_hash)) if key_hash else b""
    found = await _api_keys(store, place.owner, record)
    if place.id is not None and place.id not in {each.id for each in found}:
        found.append(await _without_entry(store, place.owner, place.id))
    dead_letters = await _dead_letters_of(store, organization.organization, [each.id for each in found])
    statuses = [(each.id, each.status, each.expires_at) for each in found if each.status in _COUNTED]
    refusal = refusal_of_key(organization.refusal, statuses, organization.limits, int(time.time() * 1000))
    return StoredKey(key_hash, organization, found, refusal, dead_letters)


async def _read_organization(
    store: Store, settings: ApiSettings, owner: bytes, complete: bool, key_hash: str | None = None
) -> StoredOrganization:
    value = await _get(store, owner)
    head = read_head(value) if len(value) >= HEAD else None
    live = head is not None and head.live and len(value) >= LIMITS.stop
    key_quota, key_window, quota, window = read_limits(value) if live else (0, 0, 0, 0)
    buckets = [names.key_limit(owner, key_hash)] if key_hash else []
    buckets.append(names.organization_limit(owner))
    full_at = [int(reply or 0) for reply in await store.ask([(b"GET", bucket) for bucket in buckets])]
    found = [_bucket("key", Limit(key_quota, key_window), settings.key_rate_limit, full_at[0] if key_hash else 0)]
    found.append(_bucket("organization", Limit(quota, window), settings.organization_rate_limit, full_at[-1]))
    job_due = {JOB_ERASE: "erase", JOB_REPLAY: "replay"}.get(value[JOB_DUE])
    api_access = live and value[ACCESS] == b"1"
    return StoredOrganization(
        names.organization_id(owner),
        owner.decode(),
        head,
        api_access,
        found,
        job_due,
        refusal_of_organization(head, api_access=api_access, replaying=live and job_due == "replay", complete=complete),
    )


def _bucket(scope: str, own: Limit, default: str, full_at: int) -> Bucket:
    """`full_at` is the time at which the bucket is full again, in microseconds since 1970, as Redis stores it."""
    applied = own if own.quota else limit(default)
    return Bucket.of(scope, applied, bool(own.quota), full_at - time.time_ns() // 1000)


async def api_keys_of(store: Store, organization_id: str) -> list[tuple[str, str]]:
    """Returns the id and the hash of each API key of an organization. It looks at every name in Redis. Raises
    Unavailable.
    """
    owner = names.organization(organization_id)
    found: dict[str, str] = {}
    async for keys in store.scan(owner + b"a*"):
        values = await store.ask([(b"GETRANGE", key, API_KEY_HASH, -1) for key in keys])
        for key, value in zip(keys, values, strict=True):
            match = names.OF_ACCESS.fullmatch(key)
            if match and match[2] and value:
                found[names.long_id(match[2])] = value.decode()
    return sorted(found.items())


async def _api_keys(store: Store, owner: bytes, record: bytes) -> list[ApiKey]:
    """Returns the API keys that the record of a hash lists."""
    entries = [record[at : at + KEY_ENTRY] for at in range(KEY_ENTRIES, len(record), KEY_ENTRY)]
    ids = [names.long_id(entry[KEY_ENTRY_ID]) for entry in entries]
    heads = await _heads(store, owner, ids)
    return [
        ApiKey(
            id_,
            "revoked" if entry[KEY_ENTRY_STATE] == KEY_REVOKED else "active",
            head,
            int.from_bytes(entry[KEY_ENTRY_EXPIRY], "little") or None,
        )
        for id_, entry, head in zip(ids, entries, heads, strict=True)
    ]


async def _without_entry(store: Store, owner: bytes, id_: str) -> ApiKey:
    [head] = await _heads(store, owner, [id_])
    return ApiKey(id_, "deleted" if head and not head.live else "unknown", head)


async def _heads(store: Store, owner: bytes, ids: Sequence[str]) -> list[Head | None]:
    if not ids:
        return []
    values = await store.ask([(b"GETRANGE", names.api_key_entity(owner, id_), 0, HEAD - 1) for id_ in ids])
    return [read_head(value) if len(value) >= HEAD else None for value in values]


async def _dead_letters_of(store: Store, organization: str, ids: Sequence[str]) -> list[DeadLetter]:
    keys = {organization, *(f"{organization}:{id_}" for id_ in ids)}
    return [letter for letter in await all_dead_letters(store) if letter.key in keys]


async def _get(store: Store, name: bytes) -> bytes:
    value: bytes | None = await store.ask_one(b"GET", name)
    return value or b""


def parse_key(text: str) -> Place | str:
    """Returns the place of a key from its text, which is hashed at once; or what is wrong with its form.

    `Bearer` before the key is ignored.
    """
    words = text.split()
    try:
        parsed = api_keys.parse(words[-1] if words else "")
    except api_keys.MalformedKey as error:
        return str(error)
    return Place(names.tagged(parsed.organization_tag), parsed.hash)
