"""Late versions: records that were published behind a newer one of their entity, in the same partition.

The higher version is shown, but compaction keeps only the last record of a message key. So what is shown can no longer
be read from Kafka once the topic was compacted: a Redis that is emptied, or a rebuild, gets the late version. That may
bring back a person who was deleted, or a key that was revoked.

The scripts notice it (`projector/redis/lua/order.lua`). A record that is read again never counts, because it does not
come behind the stored event. The list names entities by their ids, and has at most `MOST` of them; what is above that
is counted. An entity leaves the list as soon as a later record of it is the one that is shown.
"""

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from projector.ledger import copies
from projector.mapping import (
    DeleteApiKey,
    DeleteDocument,
    Intent,
    PutApiKey,
    PutDocument,
    PutLead,
    PutOrganization,
)
from projector.redis.node import Fence
from projector.redis.scripts import LateRow, delete_late_versions, note_late_versions
from projector.redis.store import SLICE, Store
from runtime.redis.scripts import Command
from schemas import names
from schemas.control import GenerationId
from schemas.layouts import HEAD, OLDER, REPEATED, REUSED, Head, read_head
from schemas.resources import API_KEY, KINDS, ORGANIZATION, Kind, Resource

_KINDS: Mapping[str, Kind] = {kind.topic: kind for kind in KINDS}
MOST = 1_000
"""The most entities that the list names."""
Cause = Literal["older", "reused"]
Behind = tuple[Intent, int]
"""The write of a record that comes behind that of the stored event, and what the script replied: OLDER, REUSED or
REPEATED."""
_CAUSES: Mapping[int, Cause | None] = {OLDER: "older", REUSED: "reused", REPEATED: None}


class LateVersion(msgspec.Struct, frozen=True):
    """The last record of an entity, as far as it was read, which is not its newest one.

    `older`: its version is lower than `newest`, which is shown. `reused`: it is the same, but the record says something
    else, or one of both is a delete. None, which is never stored: it repeats the newest event. `key` is the message
    key, and `kind` the topic without its prefix.
    """

    kind: str
    key: str
    cause: Cause | None
    version: int
    newest: int
    partition: int
    offset: int
    history: int
    noticed_at: int
    """In milliseconds since 1970."""

    @property
    def field(self) -> str:
        return names.late_version(self.kind, self.key)

    @property
    def organization_id(self) -> str:
        return self.key.partition(":")[0]

    @property
    def id(self) -> str:
        return self.key.rpartition(":")[2]

    def is_over(self, head: Head) -> bool:
        """Returns whether a later record is shown by now: one behind it, or a newer one in another partition."""
        if (head.partition, head.history) == (self.partition, self.history):
            return head.offset > self.offset
        return head.version > self.newest


class LateVersions(msgspec.Struct, frozen=True):
    """The list. `more` counts records of entities that it does not name, by the topic without its prefix."""

    named: list[LateVersion] = []
    more: dict[str, int] = {}

    def __bool__(self) -> bool:
        return bool(self.named or self.more)


def place(intent: Intent) -> tuple[Kind, str, str, Head]:
    """Returns the kind, both ids, and the head of the event that an intent writes."""
    match intent:
        case PutLead(organization_id, id_, _, head):
            return intent.resource, organization_id, id_, read_head(head)
        case PutDocument(resource, organization_id, id_, value) | DeleteDocument(resource, organization_id, id_, value):
            return resource, organization_id, id_, read_head(value)
        case PutOrganization(organization_id, head):
            return ORGANIZATION, organization_id, organization_id, read_head(head)
        case PutApiKey(organization_id, id_, _, head) | DeleteApiKey(organization_id, id_, head):
            return API_KEY, organization_id, id_, read_head(head)


async def note(
    store: Store, behind: Sequence[Behind], generations: Sequence[GenerationId], fence: Fence | None
) -> None:
    """Put the entities of late versions on the list, and take those off it whose newest event was published again: then
    their last record is their newest one. Raises Unavailable.
    """
    noted: dict[str, LateVersion] = {}
    ended: dict[str, LateVersion] = {}
    for one in await _placed(store, behind, generations, fence):
        put, removed = (ended, noted) if one.cause is None else (noted, ended)
        removed.pop(one.field, None)
        put[one.field] = one
    commands = []
    if noted:
        rows = {field: msgspec.json.encode(one) for field, one in noted.items()}
        commands.append(note_late_versions(late_versions=names.LATE_VERSIONS, most=MOST, versions=rows))
    if ended:
        commands.append(_delete(ended.values()))
    await store.run(commands, fence=fence)


async def _placed(
    store: Store, behind: Sequence[Behind], generations: Sequence[GenerationId], fence: Fence | None
) -> list[LateVersion]:
    """Returns the record of each of these events, in their order, beside the newest version that is stored."""
    if any(code == REUSED for _, code in behind):
        # A program of another mapping version makes another document of the same event.
        record = await copies.read(store)
        if record is not None and record.rebuild_due():
            behind = [one for one in behind if one[1] != REUSED or not _is_document(one[0])]
    places = [place(intent) for intent, _ in behind]
    values = [_values(kind, organization_id, id_, generations) for kind, organization_id, id_, _ in places]
    asked = [(b"GETRANGE", name, 0, HEAD - 1) for of_entity in values for name in of_entity]
    replies = iter(await store.ask(asked, fence=fence) if asked else ())
    now = int(time.time() * 1000)
    found = []
    for (_, code), (kind, organization_id, id_, head), of_entity in zip(behind, places, values, strict=True):
        stored = [read_head(value).version for value in (next(replies) for _ in of_entity) if len(value) >= HEAD]
        key = organization_id if kind is ORGANIZATION else f"{organization_id}:{id_}"
        newest = max(stored, default=head.version)
        at = head.partition, head.offset, head.history
        found.append(LateVersion(kind.topic, key, _CAUSES[code], head.version, newest, *at, now))
    return found


def _delete(late: Iterable[LateVersion]) -> Command:
    rows = [LateRow(one.field, one.partition, one.history, one.offset) for one in late]
    return delete_late_versions(late_versions=names.LATE_VERSIONS, versions=rows)


def _is_document(intent: Intent) -> bool:
    return isinstance(intent, PutLead | PutDocument | DeleteDocument)


def _values(kind: Kind, organization_id: str, id_: str, generations: Sequence[GenerationId]) -> list[bytes]:
    """Returns the names of what is stored of an entity."""
    owner = names.organization(organization_id)
    if isinstance(kind, Resource):
        return [names.document(kind, owner, generation, id_) for generation in generations]
    return [names.api_key_entity(owner, id_) if kind is API_KEY else owner]


async def read(store: Store) -> LateVersions:
    """Read the list, sorted by kind and message key. Raises Unavailable."""
    fields = await store.read_hash(names.LATE_VERSIONS)
    entries = [msgspec.json.decode(value, type=LateVersion) for name, value in fields.items() if ":" in name]
    named = [one for one in entries if one.kind in _KINDS]
    more = {name: int(value) for name, value in fields.items() if ":" not in name}
    return LateVersions(sorted(named, key=lambda one: (one.kind, one.key)), more)


async def current(store: Store, live: GenerationId) -> LateVersions:
    """Read the list without the entities of which a later record is shown by now, and without those of deleted
    organizations: they are about to be taken off it. Raises Unavailable.
    """
    listed = await read(store)
    over = await _over(store, listed.named, live)
    return LateVersions([one for one in listed.named if one not in over], listed.more)


async def clear(store: Store, live: GenerationId) -> int:
    """Take the entities off the list of which a later record is shown, and those of deleted organizations. Returns how
    many. Raises Unavailable.
    """
    return await delete(store, await _over(store, (await read(store)).named, live))


async def _over(store: Store, named: Sequence[LateVersion], live: GenerationId) -> list[LateVersion]:
    over = []
    for start in range(0, len(named), SLICE):
        some = named[start : start + SLICE]
        own = [_values(_KINDS[one.kind], one.organization_id, one.id, (live,))[0] for one in some]
        owners = [names.organization(one.organization_id) for one in some]
        values = await store.ask([(b"GETRANGE", name, 0, HEAD - 1) for name in (*own, *owners)])
        for one, value, owner in zip(some, values[: len(some)], values[len(some) :], strict=True):
            is_erased = one.kind != ORGANIZATION.topic and len(owner) >= HEAD and not read_head(owner).live
            if is_erased or (len(value) >= HEAD and one.is_over(read_head(value))):
                over.append(one)
    return over


async def delete(store: Store, late: Sequence[LateVersion]) -> int:
    """Take these off the list, unless a later record has taken their place. Returns how many. Raises Unavailable."""
    if not late:
        return 0
    [deleted] = await store.run([_delete(late)])
    return int(deleted)


async def delete_of_organization(store: Store, organization_id: str) -> None:
    """Take the entities of a deleted organization off the list. Raises Unavailable."""
    named = (await read(store)).named
    own = [one for one in named if one.organization_id == organization_id and one.kind != ORGANIZATION.topic]
    await delete(store, own)


async def forget_more(store: Store, kinds: Sequence[Kind]) -> None:
    """Deletes the counts of what the list does not name, after a comparison with these topics has found nothing. Raises
    Unavailable.
    """
    await store.ask_one(b"HDEL", names.LATE_VERSIONS, *(kind.topic for kind in kinds))
