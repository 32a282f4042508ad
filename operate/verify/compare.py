"""Compares the documents of two generations while both are being written.

One command reads both values of a document, and every write of the projectors changes both in one script. They may
still differ for a moment, because the replay may be ahead of the projectors. So documents that differ are read again.
"""

from collections.abc import Mapping, Sequence

from projector.redis.store import SLICE, Store
from projector.verify.report import Difference, Report, counts_by_topic
from projector.verify.stored import DocumentKey, differing_fields, document, stored_documents
from projector.verify.topics import settle
from schemas import names
from schemas.control import GenerationId, number_of

_ROUNDS = 3
_PAUSE_SECONDS = 0.5
# If more documents differ, the rest is reported without another check: that many do not differ only for a moment.
MAX_SUSPECTS = 10_000


async def compare(
    store: Store,
    live: GenerationId,
    other: GenerationId,
    *,
    allowed: frozenset[str] = frozenset(),
    most: int = MAX_SUSPECTS,
) -> Report:
    """Compare all documents of the generations `other` and `live`. Raises Unavailable.

    `allowed` are the fields that may differ, such as `leads.quote_total`. At most `most` that differ are read again.
    """
    report = Report(f"generation {number_of(other)} against generation {number_of(live)}", counts_by_topic())
    suspects: dict[DocumentKey, Difference] = {}
    at_once = 0
    async for of_either in stored_documents(store, (live, other)):
        pairs = await _read(store, [entity for entity, _ in of_either], live, other)
        for (entity, generation), (before, after) in zip(of_either, pairs, strict=True):
            # The scan finds a document that is in both generations twice. It is counted under its live name.
            if generation == live or before is None:
                difference = _difference(entity, before, after)
                report.checked[entity[0].topic] += (
                    difference is not None or document(entity[0], before).body is not None
                )
                if difference and not difference.is_allowed(allowed) and len(suspects) < most:
                    suspects[entity] = difference
                elif difference:
                    at_once += not difference.is_allowed(allowed)
                    report.add(difference, allowed)

    async def look(chosen: Mapping[DocumentKey, Difference]) -> Mapping[DocumentKey, Difference]:
        return await _differences(store, list(chosen), live, other)

    left: Mapping[DocumentKey, Difference] = await settle(suspects, look, rounds=_ROUNDS, pause=_PAUSE_SECONDS)
    for difference in left.values():
        report.add(difference, allowed)
    if at_once:
        report.notes.append(f"{at_once:,} of those that differ were looked at once: they may have been changing")
    return report


async def _differences(
    store: Store, entities: Sequence[DocumentKey], live: GenerationId, other: GenerationId
) -> dict[DocumentKey, Difference]:
    found = {}
    for start in range(0, len(entities), SLICE):
        some = entities[start : start + SLICE]
        for entity, (before, after) in zip(some, await _read(store, some, live, other), strict=True):
            if difference := _difference(entity, before, after):
                found[entity] = difference
    return found


async def _read(
    store: Store, entities: Sequence[DocumentKey], live: GenerationId, other: GenerationId
) -> list[tuple[bytes | None, bytes | None]]:
    """Returns the values of each document in both generations."""
    owners = [(resource, names.organization(organization_id), id_) for resource, organization_id, id_ in entities]
    return await store.ask(
        [
            (b"MGET", *(names.document(resource, owner, generation, id_) for generation in (live, other)))
            for resource, owner, id_ in owners
        ]
    )


def _difference(entity: DocumentKey, before: bytes | None, after: bytes | None) -> Difference | None:
    resource, organization_id, id_ = entity
    fields = differing_fields(document(resource, before), document(resource, after))
    return Difference(resource.topic, organization_id, id_, fields) if fields else None
