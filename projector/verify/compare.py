"""Compares the documents of two generations, while both go on being written.

Both values of a document are read by one command, and every write reaches both in one. What differs all the same is
read again after a moment: a process that takes part in the replay may have been ahead of the projectors.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import Any, NamedTuple
from zlib import crc32

import msgspec

from projector.redis.store import SLICE, Store
from projector.verify.report import Difference, Report
from schemas import names
from schemas.layouts import CONTACT_BODY, LEAD_BODY, TAGS, read_head

_ROUNDS = 3
_PAUSE_SECONDS = 0.5
# More than these are not read again: so many do not differ for a moment only.
_MOST_SUSPECTS = 10_000
_KINDS = {b"l": "leads", b"c": "contacts"}
_BODIES = {"leads": LEAD_BODY, "contacts": CONTACT_BODY}


class Document(msgspec.Struct, frozen=True):
    """What stands under a name: version, body and tags of a live document; none of them where there is none."""

    version: int = 0
    body: bytes | None = None
    tags: bytes = b""


class Pair(NamedTuple):
    """Where a document is found: its names in the live generation and in the other."""

    live: bytes
    other: bytes


async def compare(
    store: Store, live: int, other: int, *, sample: float = 1.0, allowed: frozenset[str] = frozenset()
) -> Report:
    """Compare `other` with `live`: all documents, or this share of them. Raises Unavailable."""
    report = Report(f"generation {other} against generation {live}", dict.fromkeys(_BODIES, 0), sample)
    suspects: list[Pair] = []
    async for found_in, pairs in _pairs(store, live, other, sample):
        for generation, pair, (before, after) in zip(found_in, pairs, await _values(store, pairs), strict=True):
            # A document of both comes under both of its names: it counts under the live one.
            if generation != live and before is not None:
                continue
            difference = _compare(report, pair, before, after)
            if difference and not difference.is_allowed(allowed) and len(suspects) < _MOST_SUSPECTS:
                suspects.append(pair)
            elif difference:
                report.add(difference, allowed)
    for difference in await _look_again(store, suspects):
        report.add(difference, allowed)
    return report


async def _look_again(store: Store, pairs: list[Pair]) -> list[Difference]:
    """What still differs after a moment, and another, and another."""
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


async def _pairs(store: Store, live: int, other: int, sample: float) -> AsyncIterator[tuple[list[int], list[Pair]]]:
    """In which generations documents were found, and where they are; in slices."""
    found_in: list[int] = []
    pairs: list[Pair] = []
    async for owner, generation, kind, short in document_names(store, sample):
        if generation not in (live, other):
            continue
        found_in.append(generation)
        pairs.append(Pair(b"%b%d%b%b" % (owner, live, kind, short), b"%b%d%b%b" % (owner, other, kind, short)))
        if len(pairs) == SLICE:
            yield found_in, pairs
            found_in, pairs = [], []
    yield found_in, pairs


async def document_names(store: Store, sample: float) -> AsyncIterator[tuple[bytes, int, bytes, bytes]]:
    """Owner, generation, kind and short id of every document, or of a share that is the same in all generations."""
    async for keys in store.scan(b"lv:{*}*"):
        for match in map(names.DOCUMENT.fullmatch, keys):
            if match and match[3] in _KINDS and in_sample(match[4], sample):
                yield match[1], int(match[2]), match[3], match[4]


def in_sample(short_id: bytes, sample: float) -> bool:
    """Does this id belong to the share of them that is looked at? The same answer every time."""
    return crc32(short_id) < sample * 2**32


def _compare(report: Report, pair: Pair, before: bytes | None, after: bytes | None) -> Difference | None:
    difference = _difference(pair, before, after)
    _, _, kind, _ = _parts(pair.live)
    report.checked[kind] += document(kind, before).body is not None or document(kind, after).body is not None
    return difference


def _difference(pair: Pair, before: bytes | None, after: bytes | None) -> Difference | None:
    organization, _, kind, id_ = _parts(pair.live)
    fields = differing_fields(document(kind, before), document(kind, after))
    return Difference(kind, organization, id_, tuple(fields)) if fields else None


def _parts(name: bytes) -> tuple[str, int, str, str]:
    match = names.DOCUMENT.fullmatch(name)
    if not match:
        raise ValueError("not the name of a document")
    return names.organization_id(match[1]), int(match[2]), _KINDS[match[3]], names.long_id(match[4])


def document(kind: str, value: bytes | None) -> Document:
    """Read a value; a marker, and what is no value of ours, is no document."""
    if not value or len(value) < _BODIES[kind] or not read_head(value).live:
        return Document()
    return Document(read_head(value).version, value[_BODIES[kind] :], value[TAGS])


def differing_fields(expected: Document, found: Document) -> list[str]:
    """Which fields of a document differ; `missing`, `extra` or `unreadable` for a whole one.

    `version`, `etag` and `bytes` where the fields say the same.
    """
    if expected.body is None or found.body is None:
        if expected.body is None and found.body is None:
            return []
        return ["missing" if found.body is None else "extra"]
    if expected.body == found.body:
        pairs = {"version": (expected.version, found.version), "etag": (expected.tags, found.tags)}
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
