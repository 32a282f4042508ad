"""Compares the documents of two generations, while both go on being written.

Both values of a document are read by one command, and every write reaches both in one: what differs, differs.
"""

from collections.abc import AsyncIterator
from zlib import crc32

import msgspec

from projector.report import Difference, Report
from projector.store import Store
from schemas import names
from schemas.layouts import CONTACT_BODY, LEAD_BODY, read_head

_SLICE = 500
_KINDS = {b"l": "leads", b"c": "contacts"}
_BODIES = {"leads": LEAD_BODY, "contacts": CONTACT_BODY}


class Document(msgspec.Struct, frozen=True):
    """What stands under a name: `version` and `body` of a live document; neither where there is none."""

    version: int = 0
    body: bytes | None = None


async def compare(
    store: Store, live: int, other: int, *, sample: float = 1.0, allowed: frozenset[str] = frozenset()
) -> Report:
    """Compare `other` with `live`: all documents, or this share of them. Raises Unavailable."""
    report = Report(f"generation {other} against generation {live}", dict.fromkeys(_BODIES, 0), sample)
    async for pairs in _pairs(store, live, other, sample):
        async with store.errors():
            pipeline = store.redis.pipeline(transaction=False)
            for _, *both in pairs:
                pipeline.mget(*both)
            values = await pipeline.execute()
        for (generation, name, _), (before, after) in zip(pairs, values, strict=True):
            # A document of both comes under both of its names: it counts under the live one.
            if generation == live or before is None:
                _compare(report, name, before, after, allowed)
    return report


async def _pairs(store: Store, live: int, other: int, sample: float) -> AsyncIterator[list[tuple[int, bytes, bytes]]]:
    """In which generation a document was found, and its names in the live one and in the other; in slices."""
    pairs: list[tuple[int, bytes, bytes]] = []
    async for owner, generation, kind, short in document_names(store, sample):
        if generation not in (live, other):
            continue
        pairs.append((generation, b"%b%d%b%b" % (owner, live, kind, short), b"%b%d%b%b" % (owner, other, kind, short)))
        if len(pairs) == _SLICE:
            yield pairs
            pairs = []
    yield pairs


async def document_names(store: Store, sample: float) -> AsyncIterator[tuple[bytes, int, bytes, bytes]]:
    """Owner, generation, kind and short id of every document, or of a share that is the same in all generations."""
    most = int(sample * 2**32)
    async with store.errors():
        async for name in store.redis.scan_iter(match=b"lv:{*}*", count=2000):
            match = names.DOCUMENT.fullmatch(name)
            if match and match[3] in _KINDS and crc32(match[4]) < most:
                yield match[1], int(match[2]), match[3], match[4]


def _compare(report: Report, name: bytes, before: bytes | None, after: bytes | None, allowed: frozenset[str]) -> None:
    owner, _, letter, short = _parts(name)
    kind = _KINDS[letter]
    was, is_ = document(kind, before), document(kind, after)
    report.checked[kind] += was.body is not None or is_.body is not None
    fields = differing_fields(was, is_)
    if fields:
        report.add(Difference(kind, owner, names.long_id(short), tuple(fields)), allowed)


def _parts(name: bytes) -> tuple[str, int, bytes, bytes]:
    match = names.DOCUMENT.fullmatch(name)
    if not match:
        raise ValueError("not the name of a document")
    return names.organization_id(match[1]), int(match[2]), match[3], match[4]


def document(kind: str, value: bytes | None) -> Document:
    """Read a value; a marker, and what is no value of ours, is no document."""
    if not value or len(value) < _BODIES[kind] or not read_head(value).live:
        return Document()
    return Document(read_head(value).version, value[_BODIES[kind] :])


def differing_fields(expected: Document, found: Document) -> list[str]:
    """Which fields of a document differ; `missing`, `extra` or `unreadable` for a whole one."""
    if expected.body is None or found.body is None:
        if expected.body is None and found.body is None:
            return []
        return ["missing" if found.body is None else "extra"]
    if expected.body == found.body:
        return [] if expected.version == found.version else ["version"]
    try:
        was, is_ = msgspec.json.decode(expected.body), msgspec.json.decode(found.body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ["unreadable"]
    return sorted(field for field in was.keys() | is_.keys() if was.get(field, ...) != is_.get(field, ...)) or ["bytes"]
