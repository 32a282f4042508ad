"""What Redis holds of an entity, an organization or a key, and the first check of the API that refuses it.

The checks are the rows of the table in `api/documents.py`, as `api/redis/lua/serve.lua` makes them for each
request. Nothing here contains or returns a key. Every read may raise Refused if Redis is empty, and Unavailable.
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any, Literal

import msgspec

from projector.dead_letter import DeadLetter
from projector.errors import Refused
from projector.ledger import copies, late_versions
from projector.ledger.late_versions import LateVersion
from projector.redis.store import Store
from projector.upkeep.dead_letters import all_dead_letters
from schemas import gcra, names
from schemas.bodies import body
from schemas.compression import Unreadable
from schemas.control import GenerationId, number_of
from schemas.layouts import (
    ACCESS,
    ACCESS_ON,
    API_KEY_HASH,
    ETAG,
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
    LEAD_CONTACT_ID,
    LIMITS,
    SUMMARY_HASH,
    Head,
    read_head,
    read_limits,
)
from schemas.resources import API_KEY, CONTACT, LEAD, ORGANIZATION, Kind, Resource
from schemas.settings import ApiSettings, Limit, limit
from schemas.words import as_called

SHARE = 0.2
"""A patient search keeps Redis busy for at most this share of the time, so that readers do not notice it."""
_PAUSE_SECONDS = 0.02
_COUNTED = ("active", "revoked")


class StoredBucket(msgspec.Struct, frozen=True):
    """A rate limit, and what is left of it at the moment. `own` is false if the limit is that of the settings."""

    scope: str
    quota: int
    window: int
    """In seconds."""
    own: bool
    remaining: int
    wait: float
    """Seconds until a request is allowed; 0 if one is allowed now."""

    @classmethod
    def of(cls, scope: str, own: Limit, default: str, full_in: int) -> "StoredBucket":
        """`own` is the limit of the organization, whose quota is 0 if that of the settings applies. `full_in` is the
        time until the bucket is full again, in microseconds.
        """
        applied = own if own.quota else limit(default)
        found = gcra.bucket(applied.quota, applied.window, full_in)
        return cls(scope, applied.quota, applied.window, bool(own.quota), found.remaining, found.wait / 1_000_000)


AccessCheck = Literal[
    "incomplete",
    "replaying",
    "no key",
    "malformed",
    "unknown key",
    "revoked",
    "expired",
    "unknown organization",
    "deleted organization",
    "access off",
    "used up",
]
"""A check of the API that fails. Until Redis is complete, and while the records of an organization that was recreated
are read again (`replaying`), the API answers 503 whatever the key is.
"""


class Refusal(msgspec.Struct, frozen=True):
    """The first check that fails, with its cause: the id of the API key that is revoked or has expired, when it has
    expired (ms since 1970), the limit that is used up, or what is wrong with the form of a key.
    """

    check: AccessCheck
    id: str = ""
    at: int = 0
    bucket: StoredBucket | None = None
    fault: str = ""

    @property
    def answer(self) -> tuple[str, int, str]:
        """The row of the table in `api/documents.py` (`-` for the last one), the status and the error."""
        return _ANSWERS[self.check]


_ANSWERS: Mapping[AccessCheck, tuple[str, int, str]] = {
    "incomplete": ("-", 503, "service_unavailable"),
    "replaying": ("-", 503, "service_unavailable"),
    "no key": ("3", 401, "missing_api_key"),
    "malformed": ("4", 401, "invalid_api_key"),
    "unknown key": ("5", 401, "invalid_api_key"),
    "revoked": ("5", 401, "invalid_api_key"),
    "expired": ("5", 401, "invalid_api_key"),
    "unknown organization": ("6", 403, "api_access_disabled"),
    "deleted organization": ("6", 403, "api_access_disabled"),
    "access off": ("6", 403, "api_access_disabled"),
    "used up": ("7", 429, "rate_limit_exceeded"),
}


class InGeneration(msgspec.Struct, frozen=True):
    """What a generation holds of an entity. `event` describes the event that wrote it, `contact` the one that wrote a
    lead's contact."""

    generation: int
    live: bool
    name: str
    event: Head | None
    contact: Head | None = None
    etag: str | None = None
    document: Any = None


class StoredEntity(msgspec.Struct, frozen=True):
    """An entity in every generation that is written, and the dead letters of its records. `refusal` is the answer to
    every request for it, whatever is stored."""

    generations: list[InGeneration]
    dead_letters: list[DeadLetter]
    refusal: Refusal | None
    late_versions: list[LateVersion] = []

    @property
    def live(self) -> InGeneration:
        """What readers see."""
        return next(each for each in self.generations if each.live)


class StoredOrganization(msgspec.Struct, frozen=True):
    """What Redis holds of an organization. `event` is the event that wrote it; None if there was none.

    `limits` are those that apply: the organization's own ones, or those of the settings.
    """

    organization: str
    name: str
    event: Head | None
    api_access: bool
    limits: list[StoredBucket]
    job_due: str | None
    """`erase` or `replay`: the keys and documents of the organization are being deleted, or read again."""
    refusal: Refusal | None
    dead_letters: list[DeadLetter] = []
    late_versions: list[LateVersion] = []


class KeyEntity(msgspec.Struct, frozen=True):
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
    api_keys: list[KeyEntity]
    refusal: Refusal | None
    """The first check that would refuse a request with this key; None if none would."""
    dead_letters: list[DeadLetter] = []
    late_versions: list[LateVersion] = []


async def read_entity(store: Store, resource: Resource, organization_id: str, entity_id: str) -> StoredEntity:
    """Read an entity from every generation that is written. Also raises Refused if its document cannot be read."""
    control = await copies.require(store)
    owner, state = names.organization(organization_id), control.state
    found = [
        await _in_generation(store, resource, owner, generation, entity_id, live=generation == state.live)
        for generation in state.written
    ]
    _, _, refusal = _access(await _get(store, owner), complete=control.serves)
    keys = {f"{organization_id}:{entity_id}"}
    return StoredEntity(found, await _dead_letters(store, keys), refusal, await _late_versions(store, resource, keys))


async def _in_generation(
    store: Store, resource: Resource, owner: bytes, generation: GenerationId, entity_id: str, *, live: bool
) -> InGeneration:
    name = names.document(resource, owner, generation, entity_id)
    value = await _get(store, name)
    found = InGeneration(number_of(generation), live, name.decode(), read_head(value) if value else None)
    if not found.event or not found.event.live:
        return found
    try:
        json = body(resource, value)
        document = msgspec.json.decode(json)  # not orjson, which rounds integers of more than 64 bits
    except (Unreadable, msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Refused(
            f"The document of {resource.noun} {entity_id} in generation {number_of(generation)} cannot be read: "
            f"{error}. To write it again: "
            + as_called(f"rebuild --organization {names.organization_id(owner)} --{resource.noun} {entity_id}")
        ) from error
    contact = None
    if resource is LEAD:
        contact = await read_event(store, names.document(CONTACT, owner, generation, json[LEAD_CONTACT_ID].decode()))
    return msgspec.structs.replace(found, contact=contact, etag=f'W/"{value[ETAG].hex()}"', document=document)


async def shows_its_contact(store: Store, lead: InGeneration) -> bool:
    """Returns whether a lead shows its contact as it is now. Otherwise a fan-out is under way."""
    of_lead, document = lead.name.encode(), lead.document
    owner = names.organization(document["organization_id"])
    of_contact = names.document(CONTACT, owner, names.generation_of(of_lead), document["contact_id"])
    asked = [(b"GETRANGE", key, SUMMARY_HASH.start, SUMMARY_HASH.stop - 1) for key in (of_lead, of_contact)]
    inside, now = await store.ask(asked)
    return not now or inside == now


async def read_organization(store: Store, settings: ApiSettings, organization_id: str) -> StoredOrganization:
    """Read an organization. `settings` have the limits of one without limits of its own."""
    found = await _organization(store, settings, names.organization(organization_id))
    keys = {organization_id}
    letters, late = await _dead_letters(store, keys), await _late_versions(store, ORGANIZATION, keys)
    return msgspec.structs.replace(found, dead_letters=letters, late_versions=late)


async def read_key(
    store: Store,
    settings: ApiSettings,
    owner: bytes,
    *,
    key_hash: str | None = None,
    id: str | None = None,  # noqa: A002
) -> StoredKey:
    """Read a key of an organization, by its hash or by the id of its API key."""
    if id is not None:
        key_hash = (await _get(store, names.api_key_entity(owner, id)))[API_KEY_HASH:].decode() or None
    organization = await _organization(store, settings, owner, key_hash)
    found = await _api_keys(store, owner, await _get(store, names.api_key(owner, key_hash)) if key_hash else b"")
    if id is not None and id not in {each.id for each in found}:
        head = await read_event(store, names.api_key_entity(owner, id))
        found.append(KeyEntity(id, "unknown" if head is None or head.live else "deleted", head))
    of_keys = {f"{organization.organization}:{each.id}" for each in found}
    listed = [each for each in found if each.status in _COUNTED]
    refusal = refusal_of_key(organization.refusal, listed, organization.limits, int(time.time() * 1000))
    letters = await _dead_letters(store, {organization.organization, *of_keys})
    late = await _late_versions(store, API_KEY, of_keys)
    return StoredKey(key_hash, organization, found, refusal, letters, late)


async def no_such_key(store: Store, key_hash: str | None) -> StoredKey:
    """Returns what is known of a key that is stored nowhere."""
    check: AccessCheck = "unknown key" if (await copies.require(store)).serves else "incomplete"
    return StoredKey(key_hash, None, [], Refusal(check))


async def read_event(store: Store, name: bytes) -> Head | None:
    """Returns which event wrote what has this name; None if there is nothing."""
    value = await store.ask_one(b"GETRANGE", name, 0, HEAD - 1)
    return read_head(value) if len(value) >= HEAD else None


async def search(
    store: Store,
    *,
    id: str = "",  # noqa: A002 - the field's own word
    key_hash: str = "",
    patient: bool = False,
) -> AsyncGenerator[bytes]:
    """Yields the name of each organization's record that has an API key with this id, or a key with this hash: it looks
    at every name in Redis. A name may come twice. With `patient`, Redis does something else during most of the time.
    Raises Unavailable.
    """
    ending = b"k" + key_hash.encode() if key_hash else b"a" + names.short_id(id)
    asked, since = 0.0, time.monotonic()
    # Redis would be silent until it has found something that ends like this, and there would be no time for a pause.
    async for keys in store.scan(names.ALL if patient else names.ALL + ending):
        asked += time.monotonic() - since
        for key in keys:
            if (match := names.OF_ACCESS.fullmatch(key)) and key == match[1] + ending:
                yield match[1]
        if patient and asked > _PAUSE_SECONDS * SHARE:
            await asyncio.sleep(asked * (1 / SHARE - 1))
            asked = 0.0
        since = time.monotonic()


async def _organization(
    store: Store, settings: ApiSettings, owner: bytes, key_hash: str | None = None
) -> StoredOrganization:
    complete = (await copies.require(store)).serves
    value = await _get(store, owner)
    head, api_access, refusal = _access(value, complete=complete)
    key_quota, key_window, quota, window = read_limits(value) if len(value) >= LIMITS.stop else (0, 0, 0, 0)
    buckets = [names.key_limit(owner, key_hash)] if key_hash else []
    replies = await store.ask([(b"GET", bucket) for bucket in (*buckets, names.organization_limit(owner))])
    now = time.time_ns() // 1000
    *of_key, of_all = [int(reply or 0) - now for reply in replies]
    limits = [
        StoredBucket.of("key", Limit(key_quota, key_window), settings.key_rate_limit, of_key[0] if of_key else 0),
        StoredBucket.of("organization", Limit(quota, window), settings.organization_rate_limit, of_all),
    ]
    job_due = {JOB_ERASE: "erase", JOB_REPLAY: "replay"}.get(value[JOB_DUE])
    organization_id = names.organization_id(owner)
    return StoredOrganization(organization_id, owner.decode(), head, api_access, limits, job_due, refusal)


def _access(value: bytes, *, complete: bool) -> tuple[Head | None, bool, Refusal | None]:
    """Returns the event that wrote the record of an organization, whether API access is on, and what is refused."""
    head = read_head(value) if len(value) >= HEAD else None
    live = head is not None and head.live and len(value) >= LIMITS.stop
    api_access, replaying = live and value[ACCESS] == ACCESS_ON, live and value[JOB_DUE] == JOB_REPLAY
    refusal = refusal_of_organization(head, api_access=api_access, replaying=replaying, complete=complete)
    return head, api_access, refusal


def refusal_of_organization(head: Head | None, *, api_access: bool, replaying: bool, complete: bool) -> Refusal | None:
    """Returns the check that refuses every key of an organization; None if it has access. Pure.

    `head` is that of its stored record. While it is `replaying` its records, or Redis is not `complete`, the API
    answers 503 whatever the key is.
    """
    checks: dict[AccessCheck, bool] = {
        "incomplete": not complete,
        "replaying": replaying,
        "unknown organization": head is None,
        "deleted organization": head is not None and not head.live,
        "access off": not api_access,
    }
    return next((Refusal(check) for check, fails in checks.items() if fails), None)


def refusal_of_key(
    organization: Refusal | None, api_keys: Sequence[KeyEntity], limits: Sequence[StoredBucket], now: int
) -> Refusal | None:
    """Returns the first check that refuses a key; None if a request with it is served. Pure.

    `organization` is the refusal of its organization, and `api_keys` are those that the record of its hash lists. `now`
    is in milliseconds since 1970.
    """
    if organization and organization.check in ("incomplete", "replaying"):
        return organization
    if not api_keys:
        return Refusal("unknown key")
    if revoked := [each for each in api_keys if each.status == "revoked"]:
        return Refusal("revoked", revoked[0].id)
    if expired := [(each.expires_at, each.id) for each in api_keys if each.expires_at and each.expires_at <= now]:
        at, id_ = min(expired)
        return Refusal("expired", id_, at)
    slowest = max(limits, key=lambda bucket: bucket.wait)
    return organization or (Refusal("used up", bucket=slowest) if slowest.wait else None)


async def _api_keys(store: Store, owner: bytes, record: bytes) -> list[KeyEntity]:
    """Returns the API keys that the record of a hash lists."""
    entries = [record[at : at + KEY_ENTRY] for at in range(KEY_ENTRIES, len(record), KEY_ENTRY)]
    ids = [names.long_id(entry[KEY_ENTRY_ID]) for entry in entries]
    return [
        KeyEntity(
            id_,
            "revoked" if entry[KEY_ENTRY_STATE] == KEY_REVOKED else "active",
            await read_event(store, names.api_key_entity(owner, id_)),
            int.from_bytes(entry[KEY_ENTRY_EXPIRY], "little") or None,
        )
        for id_, entry in zip(ids, entries, strict=True)
    ]


async def _dead_letters(store: Store, keys: set[str]) -> list[DeadLetter]:
    return [letter for letter in await all_dead_letters(store) if letter.key in keys]


async def _late_versions(store: Store, kind: Kind, keys: set[str]) -> list[LateVersion]:
    listed = await late_versions.current(store, (await copies.require(store)).state.live)
    return [one for one in listed.named if one.kind == kind.topic and one.key in keys]


async def _get(store: Store, name: bytes) -> bytes:
    value: bytes | None = await store.ask_one(b"GET", name)
    return value or b""
