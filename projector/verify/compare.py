"""Compares the documents of two generations while both are being written.

One command reads both values of a document, and every write of the projectors changes both in one script. They may
still differ for a moment, because the replay may be ahead of the projectors. So documents that differ are read again.
"""

import asyncio
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from projector.redis.store import SLICE, Store
from projector.verify.report import Difference, Report, counts_by_topic
from schemas import names
from schemas.bodies import body
from schemas.compression import Unreadable
from schemas.control import GenerationId, number_of
from schemas.layouts import ETAG, read_head
from schemas.resources import RESOURCES, Resource

_ROUNDS = 3
_PAUSE_SECONDS = 0.5
# If more documents differ, the rest is reported without another check: that many do not differ only for a moment.
_MAX_SUSPECTS = 10_000
_BY_LETTER = {resource.letter: resource for resource in RESOURCES}

DocumentKey = tuple[Resource, str, str]
"""Resource, organization, id."""


class Document(msgspec.Struct, frozen=True):
    """Version, body and ETag of a live document. All are empty if there is no live document."""

    version: int = 0
    body: bytes | None = None
    etag: bytes = b""


class Pair(NamedTuple):
    """The names of a document in the live generation and in the other one."""

    live: bytes
    other: bytes


async def compare(
    store: Store, live: GenerationId, other: GenerationId, *, sample: float = 1.0, allowed: frozenset[str] = frozenset()
) -> Report:
    """Compare all documents of the generations `other` and `live`, or the share `sample` of them. Raises Unavailable.

    `allowed` are the fields that may differ, such as `leads.quote_total`.
    """
    report = Report(f"generation {number_of(other)} against generation {number_of(live)}", counts_by_topic(), sample)
    suspects: list[Pair] = []
    async for found_in, pairs in _pairs(store, live, other, sample):
        for generation, pair, (before, after) in zip(found_in, pairs, await _values(store, pairs), strict=True):
            # The scan finds a document that is in both generations twice. It is counted under its live name.
            if generation != live and before is not None:
                continue
            difference = _compare(report, pair, before, after)
            if difference and not difference.is_allowed(allowed) and len(suspects) < _MAX_SUSPECTS:
                suspects.append(pair)
            elif difference:
                report.add(difference, allowed)
    for difference in await _recheck(store, suspects):
        report.add(difference, allowed)
    return report


async def _recheck(store: Store, pairs: list[Pair]) -> list[Difference]:
    """Returns the differences that remain after several pauses."""
    differences: list[Difference] = []
    for _ in range(_ROUNDS):
        if not pairs:
            return []
        await asyncio.sleep(_PAUSE_SECONDS)
        still: list[Pair] = []
        differences = []
        for start in range(0, len(pairs), SLICE):
            slice_ = pairs[start : start + SLICE]
            for pair, (before, after) in zip(slice_, await _values(store, slice_), strict=True):
                if difference := _difference(pair, before, after):
                    still.append(pair)
                    differences.append(difference)
        pairs = still
    return differences


async def _values(store: Store, pairs: list[Pair]) -> list[list[bytes | None]]:
    return await store.ask([(b"MGET", *pair) for pair in pairs])


async def _pairs(
    store: Store, live: GenerationId, other: GenerationId, sample: float
) -> AsyncIterator[tuple[list[GenerationId], list[Pair]]]:
    """Yields lists of up to `SLICE`: the generations in which documents were found, and their pairs of names."""
    found_in: list[GenerationId] = []
    pairs: list[Pair] = []
    async for owner, generation, resource, short in document_names(store, sample):
        if generation not in (live, other):
            continue
        found_in.append(generation)
        of_generation = partial(names.document_by_short_id, resource, owner, entity_id=short)
        pairs.append(Pair(of_generation(live), of_generation(other)))
        if len(pairs) == SLICE:
            yield found_in, pairs
            found_in, pairs = [], []
    yield found_in, pairs


async def document_names(store: Store, sample: float) -> AsyncIterator[tuple[bytes, GenerationId, Resource, bytes]]:
    """Yields owner, generation, resource and short id of every document in the sample. Raises Unavailable."""
    async for keys in store.scan(names.ALL):
        for match in map(names.IN_GENERATION.fullmatch, keys):
            if match and match[3] in _BY_LETTER and in_sample(match[4], sample):
                yield match[1], GenerationId(match[2].decode()), _BY_LETTER[match[3]], match[4]


def in_sample(short_id: bytes, sample: float) -> bool:
    """Returns whether this id belongs to the share `sample` (0 to 1). The result for an id is always the same."""
    return crc32(short_id) < sample * 2**32


def _compare(report: Report, pair: Pair, before: bytes | None, after: bytes | None) -> Difference | None:
    resource, _, _ = _key(pair.live)
    exists = document(resource, before).body is not None or document(resource, after).body is not None
    report.checked[resource.topic] += exists
    return _difference(pair, before, after)


def _difference(pair: Pair, before: bytes | None, after: bytes | None) -> Difference | None:
    resource, organization, id_ = _key(pair.live)
    fields = differing_fields(document(resource, before), document(resource, after))
    return Difference(resource.topic, organization, id_, tuple(fields)) if fields else None


def _key(name: bytes) -> DocumentKey:
    match = names.IN_GENERATION.fullmatch(name)
    if not match:
        raise ValueError("this is not the name of a document")
    return _BY_LETTER[match[3]], names.organization_id(match[1]), names.long_id(match[4])


def document(resource: Resource, value: bytes | None) -> Document:
    """Parse a stored value. Returns an empty document for a marker, and for a value that Leadview did not write."""
    if not value or len(value) < resource.body or not read_head(value).live:
        return Document()
    try:
        json = body(resource, value)
    except Unreadable:
        json = value[resource.body :]  # this is not JSON either
    return Document(read_head(value).version, json, value[ETAG])


def differing_fields(expected: Document, found: Document) -> list[str]:
    """Returns the names of the fields that differ.

    A whole document can be `missing`, `extra` or `unreadable`. If all fields are equal, the result may be `version`,
    `etag` or `bytes`.
    """
    if expected.body is None or found.body is None:
        if expected.body is None and found.body is None:
            return []
        return ["missing" if found.body is None else "extra"]
    if expected.body == found.body:
        pairs = {"version": (expected.version, found.version), "etag": (expected.etag, found.etag)}
        return [name for name, (was, is_) in pairs.items() if was != is_]
    before, after = _decode(expected.body), _decode(found.body)
    if not isinstance(before, dict) or not isinstance(after, dict):
        return ["unreadable"]
    fields = before.keys() | after.keys()
    return sorted(field for field in fields if before.get(field, ...) != after.get(field, ...)) or ["bytes"]


def _decode(body: bytes) -> Any:
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
