"""Compares organizations and API keys with the topics: what is missing, superfluous or different.

The topics are read up to the positions of the projectors. Then everything that Redis holds of the access of an
organization is read: first the records of hashes, then the API keys, and its own record last. A write changes a record
of a hash and the API key in one script. So if anything changed after the topics were read, the head of an API key or of
the organization shows an event that comes after the positions: then this organization is read again.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import NamedTuple

import msgspec

from projector.kafka.client import topic
from projector.kafka.reader import Reader, open_reader
from projector.record import Partition
from projector.redis.store import SLICE, Store
from projector.reference import Newest, Reference
from projector.verify.recheck import Ranges, notes, read_covered, require_topics
from projector.verify.report import Difference, Report
from schemas import names
from schemas.layouts import (
    ACCESS,
    API_KEY_HASH,
    HEAD,
    JOB_DUE,
    JOB_ERASE,
    JOB_REPLAY,
    KEY_ENTRIES,
    KEY_ENTRY,
    KEY_ENTRY_ID,
    KEY_ORGANIZATION,
    LIMITS,
    Head,
    key_validity,
    read_head,
)
from schemas.resources import ACCESS_KINDS, API_KEY, ORGANIZATION, Kind
from schemas.settings import ProjectorSettings

_ROUNDS = 5
_PAUSE_SECONDS = 0.3


class _Expected(msgspec.Struct):
    """What the topics say of the access of an organization: its own newest event, and those of its API keys by id."""

    organization: Newest | None = None
    api_keys: dict[str, Newest] = {}

    @property
    def is_erased(self) -> bool:
        return self.organization is not None and not self.organization.live


class _Stored(NamedTuple):
    """What Redis holds of it: its own record, API keys by id, and records of keys by hash."""

    organization: bytes
    api_keys: dict[str, bytes]
    hashes: dict[str, bytes]


class _Names(msgspec.Struct):
    """The ids and the hashes of an organization's keys that have names in Redis."""

    ids: set[str] = msgspec.field(default_factory=set)
    hashes: set[str] = msgspec.field(default_factory=set)


async def audit(store: Store, settings: ProjectorSettings) -> Report:
    """Compare all organizations and API keys with the topics.

    Raises Refused if a topic is missing, and Unavailable.
    """
    report = Report("organizations and API keys against the topics", {kind.topic: 0 for kind in ACCESS_KINDS})
    async with open_reader(settings, ACCESS_KINDS) as reader:
        await require_topics(reader, settings, ACCESS_KINDS)
        chosen: set[str] | None = None  # all of them
        changing: set[str] = set()
        for number in range(_ROUNDS):
            await asyncio.sleep(_PAUSE_SECONDS if number else 0)
            covered = await read_covered(store, reader)
            expected = await _read_topics(reader, covered, chosen)
            if chosen is None:
                report.notes += await notes(store, reader, covered)
                report.checked = _count(expected)
            stored = await _names_in_redis(store, chosen)
            changing = set()
            for organization_id in sorted(expected.keys() | stored.keys()):
                one = expected.get(organization_id, _Expected())
                found = await _read_stored(store, organization_id, one, stored.get(organization_id, _Names()))
                if _is_changing(settings, found, covered, reader.histories):
                    changing.add(organization_id)
                    continue
                for difference in _differences(organization_id, one, found):
                    report.add(difference, frozenset())
            if not changing:
                return report
            chosen = changing
    report.changing = len(changing)
    report.notes.append(f"{len(changing):,} organizations kept changing and could not be compared")
    return report


async def _read_topics(reader: Reader, covered: Ranges, chosen: set[str] | None) -> dict[str, _Expected]:
    """Returns what the topics say of these organizations, or of all."""
    reference = Reference()
    wanted = None if chosen is None else {organization_id.encode() for organization_id in chosen}
    async for records in reader.read(covered):
        for record in records:
            if wanted is None or (record.key or b"").partition(b":")[0] in wanted:
                reference.add(record)
    found: dict[str, _Expected] = {}
    for (kind, organization_id, id_), newest in reference.newest.items():
        one = found.setdefault(organization_id, _Expected())
        if kind is ORGANIZATION:
            one.organization = newest
        else:
            one.api_keys[id_] = newest
    return found


def _count(expected: Mapping[str, _Expected]) -> dict[str, int]:
    """Returns how many live organizations and API keys the topics have."""
    present = [one for one in expected.values() if not one.is_erased]
    organizations = sum(one.organization is not None for one in present)
    keys = sum(newest.live for one in present for newest in one.api_keys.values())
    return {ORGANIZATION.topic: organizations, API_KEY.topic: keys}


async def _names_in_redis(store: Store, chosen: set[str] | None) -> dict[str, _Names]:
    found: dict[str, _Names] = {}
    async for owner, short, key_hash in _scan(store, chosen):
        one = found.setdefault(names.organization_id(owner), _Names())
        if short is not None:
            one.ids.add(names.long_id(short))
        elif key_hash is not None:
            one.hashes.add(key_hash.decode())
    return found


async def _scan(store: Store, chosen: set[str] | None) -> AsyncIterator[tuple[bytes, bytes | None, bytes | None]]:
    owners = None if chosen is None else {names.organization(organization_id) for organization_id in chosen}
    async for keys in store.scan(names.ALL):
        for match in map(names.OF_ACCESS.fullmatch, keys):
            if match and (owners is None or match[1] in owners):
                yield match[1], match[2], match[3]


async def _read_stored(store: Store, organization_id: str, expected: _Expected, found: _Names) -> _Stored:
    """Read what the topics or the names in Redis speak of, in the order that the docstring of this module explains."""
    owner = names.organization(organization_id)
    of_topics = {newest.key.hash for newest in expected.api_keys.values() if newest.key}
    hashes = await _values(store, {each: names.api_key(owner, each) for each in found.hashes | of_topics})
    listed = {names.long_id(entry[KEY_ENTRY_ID]) for record in hashes.values() for entry in _entries(record)}
    ids = found.ids | expected.api_keys.keys() | listed
    api_keys = await _values(store, {id_: names.api_key_entity(owner, id_) for id_ in ids})
    organization: bytes | None = await store.ask_one(b"GET", owner)
    return _Stored(organization or b"", api_keys, hashes)


async def _values(store: Store, wanted: Mapping[str, bytes]) -> dict[str, bytes]:
    """Returns the values of these names that are stored."""
    items = sorted(wanted.items())
    values: dict[str, bytes] = {}
    for start in range(0, len(items), SLICE):
        some = items[start : start + SLICE]
        replies = await store.ask([(b"GET", name) for _, name in some])
        values |= {each: value for (each, _), value in zip(some, replies, strict=True) if value is not None}
    return values


def _is_changing(settings: ProjectorSettings, found: _Stored, covered: Ranges, histories: Mapping[str, int]) -> bool:
    """Returns whether anything has a newer event than was read, or the organization is being erased or replayed."""
    if found.organization[JOB_DUE] in (JOB_ERASE, JOB_REPLAY):
        return True
    values: list[tuple[Kind, bytes]] = [(API_KEY, value) for value in found.api_keys.values()]
    for kind, value in [(ORGANIZATION, found.organization), *values]:
        if len(value) >= HEAD:
            head = read_head(value)
            partition = Partition(topic(settings, kind), head.partition)
            ends, is_current = covered.get(partition), head.history == histories.get(partition.topic, 0)
            if ends and is_current and ends[1] <= head.offset:
                return True
    return False


def _differences(organization_id: str, expected: _Expected, found: _Stored) -> Iterable[Difference]:
    if fields := _of_organization(expected.organization, found.organization):
        yield Difference(ORGANIZATION.topic, organization_id, organization_id, tuple(fields))
    for id_ in sorted(expected.api_keys.keys() | found.api_keys.keys()):
        newest = None if expected.is_erased else expected.api_keys.get(id_)
        if fields := _of_api_key(newest, found.api_keys.get(id_, b"")):
            yield Difference(API_KEY.topic, organization_id, id_, tuple(fields))
    tag = names.tag(names.organization(organization_id))
    records = {} if expected.is_erased else records_of(tag, expected.api_keys)
    for key_hash in sorted(records.keys() | found.hashes.keys()):
        if fields := of_record(records.get(key_hash), found.hashes.get(key_hash)):
            yield Difference(API_KEY.topic, organization_id, f"hash {key_hash}", tuple(fields))


def _of_organization(newest: Newest | None, value: bytes) -> list[str]:
    head = _live_head(value)
    if newest is None or not newest.live or head is None:
        return _existence(newest is not None and newest.live, head is not None)
    access, limits = newest.access[:1], newest.access[1:]
    fields = {"api_access": value[ACCESS] != access, "rate_limits": value[LIMITS] != limits}
    fields["version"] = head.version != newest.version
    return [name for name, differs in fields.items() if differs]


def _of_api_key(newest: Newest | None, value: bytes) -> list[str]:
    head = _live_head(value)
    if newest is None or newest.key is None or head is None:
        return _existence(newest is not None and newest.live, head is not None)
    fields = {"hash": value[API_KEY_HASH:].decode(errors="replace") != newest.key.hash}
    fields["version"] = head.version != newest.version
    return [name for name, differs in fields.items() if differs]


def records_of(tag: bytes, api_keys: Mapping[str, Newest]) -> dict[str, bytes]:
    """Returns the record of each hash that the newest events require, as `put_api_key.lua` writes it."""
    entries: dict[str, list[bytes]] = {}
    expiries: dict[str, list[int]] = {}
    for id_, newest in api_keys.items():
        if key := newest.key:
            validity = key_validity(revoked=key.revoked, expiry=key.expiry)
            entries.setdefault(key.hash, []).append(names.short_id(id_) + validity)
            expiries.setdefault(key.hash, []).append(1 if key.revoked else key.expiry)
    return {
        key_hash: tag
        + min((each for each in expiries[key_hash] if each), default=0).to_bytes(6, "little")
        + b"".join(sorted(found))
        for key_hash, found in entries.items()
    }


def of_record(expected: bytes | None, found: bytes | None) -> list[str]:
    """Returns what differs in the record of a hash."""
    if expected is None or found is None:
        return _existence(expected is not None, found is not None)
    if expected == found:
        return []
    if expected[KEY_ORGANIZATION] != found[KEY_ORGANIZATION]:
        return ["organization_id"]
    return ["status"]


def _entries(record: bytes) -> list[bytes]:
    return [record[at : at + KEY_ENTRY] for at in range(KEY_ENTRIES, len(record) - KEY_ENTRY + 1, KEY_ENTRY)]


def _existence(expected: bool, found: bool) -> list[str]:
    if expected == found:
        return []
    return ["missing"] if expected else ["extra"]


def _live_head(value: bytes) -> Head | None:
    """Returns the head of a value; None for a marker, and for a value that Leadview did not write."""
    head = read_head(value) if len(value) >= HEAD else None
    return head if head and head.live else None
