"""A core product: organizations that keep changing, the same for the same seed. And its writer, which publishes their
events and notes when.

Ids are the same in all organizations, so that a mixed-up answer shows. A lead shows its version as referrer, a contact
as first name. Of the three organizations of a chaos run, the third is now and then deleted and created again.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from itertools import count, islice
from random import Random
from typing import Any

import msgspec
from msgspec import Struct

from devstack.threads import Repeating
from projector import mapping
from projector.change import read
from projector.reference import Entity
from schemas import api_keys, documents, events, resources
from tests.chaos.history import History, now
from tests.harness import crm, projectors
from tests.harness.crm import Message
from tests.harness.leadview import Leadview

ORGANIZATIONS = (crm.uuid(0xA1), crm.uuid(0xA4), crm.uuid(0xA3))
"""On a cluster of three primaries that share the slots evenly, each has one of them."""
STEADY, SWITCHED, DELETED = ORGANIZATIONS
KEY_IDS = (crm.uuid(0xF1), crm.uuid(0xF2))
"""The first is always active, the second is revoked now and then."""
UNKNOWN = crm.uuid(0xDEAD)
"""The id of a lead that never exists."""
_UNLIMITED = {scope: {"quota": 10**6, "window_seconds": 1} for scope in ("key", "organization")}
_STEP_SECONDS = 0.01
_MUCH_LATER = 150
_NEVER = 10**9
_BAD_SHARE = 0.004
_HOSTILE_SHARE = 0.25
"""Of bad records."""
_TICK_SECONDS = 0.05
_MAX_BEHIND = 500
_WORK_SECONDS, _REST_SECONDS = (2.0, 12.0), (1.0, 10.0)
"""The writer rests now and then: some holes exist only while nothing is written."""

_LEAD_MAPPINGS: tuple[Callable[[events.Lead], documents.Lead], ...] = (
    mapping.lead_document,
    projectors.lead_document,
)


class Change(Struct, frozen=True):
    """A message, and what it changes: `register` is None if it changes nothing (a duplicate, a bad record)."""

    message: Message
    register: Entity | None
    value: str | None = None
    bad: bool = False


class Core:
    """Makes changes without end. `first` has to be published before `more`."""

    def __init__(
        self,
        seed: int,
        organizations: Sequence[str] = ORGANIZATIONS,
        *,
        leads: int = 40,
        contacts: int = 12,
        hostile_bytes: int = 0,
        calm: bool = False,
    ) -> None:
        """`leads` and `contacts` are those of each organization. `hostile_bytes` is the size of the largest hostile
        record; 0: there is none. `calm`: only leads and contacts change; nothing is bad, and access stays as it is.
        """
        self.organizations = organizations
        self.leads = [crm.uuid(0x100000 + number) for number in range(leads)]
        self.contacts = [crm.uuid(0xC00000 + number) for number in range(contacts)]
        self._random = Random(seed)
        self._hostile_bytes = hostile_bytes
        self._calm = calm
        self._versions: dict[Entity, int] = {}
        self._contact_of: dict[Entity, str] = {}
        self._off: set[Entity] = set()
        self._at_rest: list[Entity] = []
        self._newest: dict[Entity, Message] = {}
        self._numbers = count(1)

    def first(self) -> Iterator[Change]:
        """Every organization with its keys, leads and contacts; some contacts come after their leads."""
        for organization in self.organizations:
            early = len(self.contacts) // 2
            rows: tuple[tuple[resources.Kind, Sequence[str]], ...] = (
                (resources.ORGANIZATION, (organization,)),
                (resources.API_KEY, KEY_IDS),
                (resources.CONTACT, self.contacts[:early]),
                (resources.LEAD, self.leads),
                (resources.CONTACT, self.contacts[early:]),
            )
            for kind, ids in rows:
                yield from (self._put((kind, organization, id_)) for id_ in ids)

    @contextmanager
    def at_rest(self, kind: resources.Kind) -> Iterator[list[Entity]]:
        """Some entities of a kind that may be deleted. `more` does not change them until the block ends."""
        self._at_rest = self._mortal(kind)
        try:
            yield self._at_rest
        finally:
            self._at_rest = []

    def _mortal(self, kind: resources.Kind) -> list[Entity]:
        ids: dict[resources.Kind, Sequence[str]] = {
            resources.LEAD: self.leads[len(self.leads) // 4 :: 3],
            resources.CONTACT: self.contacts[len(self.contacts) // 4 :: 2],
            resources.API_KEY: KEY_IDS[1:],
        }
        if kind is resources.ORGANIZATION:
            return [(kind, DELETED, DELETED)]
        return [(kind, organization, id_) for organization in self.organizations for id_ in ids[kind]]

    def put(self, entity: Entity) -> Change:
        """The next version of an entity, which is active."""
        self._off.discard(entity)
        return self._put(entity)

    def delete(self, entity: Entity, *, tombstone: bool = False) -> Change:
        if entity[0] in (resources.API_KEY, resources.ORGANIZATION):
            self._off.add(entity)
        return self._gone(entity, tombstone=tombstone)

    def tombstone(self, entity: Entity) -> Change:
        return self.delete(entity, tombstone=True)

    def much_later(self, entity: Entity) -> Message:
        """Returns a tombstone with a time by which segments have ended. All that comes is later.

        A segment ends when a record is a second later than its first one. That may be the marker of a transaction,
        which has the time of a broker.
        """
        now = round((time.time() - crm.at_ms(0) / 1000) / _STEP_SECONDS)
        self._numbers = count(max(next(self._numbers), now) + _MUCH_LATER)
        return crm.tombstone(entity[0], entity[2], entity[1], self._seconds())

    def newest_of(self, entity: Entity) -> Message:
        """Returns what was published last of an entity. There must be something."""
        return self._newest[entity]

    def never(self, kind: resources.Kind) -> Message:
        """Returns an event that must not be applied: it is in no topic, or in none that counts."""
        fields: dict[str, Any] = {"organization_id": STEADY, "seconds": self._seconds()}
        match kind:
            case resources.LEAD:
                lead, contact = self.leads[0], self.contacts[0]
                return crm.lead(_NEVER, **fields, id=lead, contact_id=contact, referrer="never")
            case resources.CONTACT:
                return crm.contact(_NEVER, **fields, id=self.contacts[0], first_name="never")
            case resources.ORGANIZATION:
                return crm.organization(_NEVER, **fields, id=STEADY, api_access=False)
            case _:
                key_hash = api_keys.key_hash(key_of(STEADY))
                return crm.api_key(_NEVER, **fields, id=KEY_IDS[0], hash=key_hash, status="revoked")

    def again(self, kind: resources.Kind) -> Iterator[Message]:
        """Yields all entities of a kind as they are now, for a topic that was recreated: deleted ones as events."""
        for entity, version in list(self._versions.items()):
            if entity[0] is not kind:
                continue
            if entity in self._newest:
                yield self._newest[entity]
            else:
                self._versions[entity] = version + 1  # a tombstone's marker may be there
                yield crm.deleted(kind, version + 1, entity[2], entity[1], self._seconds())

    def more(self) -> Iterator[Change]:
        while True:
            organization = self._random.choice(self.organizations)
            chance = max(self._random.random(), 0.05 if self._calm else 0.0)
            if chance < _BAD_SHARE:
                yield self._bad(organization)
            elif chance < 0.03:
                moving = [message for entity, message in self._newest.items() if entity not in self._at_rest]
                yield Change(self._random.choice(moving), None)  # published twice
            elif chance < 0.045:
                yield from self._switch((resources.API_KEY, organization, KEY_IDS[1]))
            elif chance < 0.048 and organization != STEADY:
                yield from self._switch((resources.ORGANIZATION, organization, organization))
            elif 0.048 <= chance < 0.40:
                yield self._any(resources.CONTACT, organization, self.contacts)
            else:
                yield self._any(resources.LEAD, organization, self.leads)

    def _any(self, kind: resources.Kind, organization: str, ids: list[str]) -> Change:
        """The first quarter of them is never deleted: a 404 there is always wrong."""
        moving = [id_ for id_ in ids if (kind, organization, id_) not in self._at_rest]
        entity = (kind, organization, self._random.choice(moving))
        verb = self._random.random()
        if ids.index(entity[2]) >= len(ids) // 4 and verb < 0.12:
            return self._gone(entity, tombstone=verb < 0.04)
        return self._put(entity)

    def _put(self, entity: Entity) -> Change:
        version = self._next_version(entity)
        value = f"v{version}"
        fields: dict[str, Any] = {"id": entity[2], "organization_id": entity[1], "seconds": self._seconds()}
        match entity[0]:
            case resources.LEAD:
                if entity not in self._contact_of or self._random.random() < 0.2:
                    self._contact_of[entity] = self._random.choice(self.contacts)
                message = crm.lead(version, **fields, contact_id=self._contact_of[entity], referrer=value)
            case resources.CONTACT:
                message = crm.contact(version, **fields, first_name=value)
            case resources.ORGANIZATION:
                value = "off" if entity in self._off else "on"
                message = crm.organization(version, **fields, api_access=value == "on", rate_limits=_UNLIMITED)
            case _:
                value = "revoked" if entity in self._off else "active"
                message = crm.api_key(version, **fields, hash=api_keys.key_hash(key_text(entity)), status=value)
        return self._change(message, entity, value)

    def _gone(self, entity: Entity, *, tombstone: bool) -> Change:
        kind, organization, id_ = entity
        if tombstone:
            return self._change(crm.tombstone(kind, id_, organization, self._seconds()), entity, None)
        version = self._next_version(entity)
        return self._change(crm.deleted(kind, version, id_, organization, self._seconds()), entity, None)

    def _switch(self, entity: Entity) -> Iterator[Change]:
        """An API key or the access of an organization is off if it was on, and the other way round."""
        if entity in self._at_rest:
            return
        self._off ^= {entity}
        if entity[2] == DELETED and entity in self._off:
            yield self._gone(entity, tombstone=False)
        else:
            yield self._put(entity)

    def _bad(self, organization: str) -> Change:
        """A record that is bad: now and then, a text that never ends, too deep in lists. It must cost no more than any
        other bad record.
        """
        value = b"{"
        if self._hostile_bytes and self._random.random() < _HOSTILE_SHARE:
            depth, size = 10_001, self._random.randint(self._hostile_bytes // 2, self._hostile_bytes)
            value = b"[" * depth + b'\\"' * max(1, (size - depth) // 2)
        # A key of its own: under a lead's, compaction would leave nothing else of the lead.
        key = crm.message_key(resources.LEAD, organization, crm.uuid(0xBAD00000 + next(self._numbers)))
        return Change(Message(resources.LEAD, key, value, seconds=self._seconds()), None, bad=True)

    def _change(self, message: Message, entity: Entity, value: str | None) -> Change:
        if message.value is not None and self._random.random() < 0.3:
            message = crm.binary(message)
        self._newest.pop(entity, None)
        if message.value is not None:
            self._newest[entity] = message
        return Change(message, entity, value)

    def _next_version(self, entity: Entity) -> int:
        self._versions[entity] = self._versions.get(entity, 7) + self._random.randint(1, 3)
        return self._versions[entity]

    def _seconds(self) -> float:
        """Returns the time of the next event. It grows with each event: it orders those of different partitions."""
        return next(self._numbers) * _STEP_SECONDS


def key_text(entity: Entity) -> str:
    return api_keys.mint(entity[1], entity[2].replace("-", "")[-30:])


def key_of(organization: str) -> str:
    """The API key of an organization that is always active."""
    return key_text((resources.API_KEY, organization, KEY_IDS[0]))


class Stage:
    """A Leadview to which a core product publishes, and what has happened to it."""

    def __init__(self, leadview: Leadview) -> None:
        self.leadview = leadview
        self.history = History()
        self.publishing = threading.RLock()
        """Held while something is being published."""


class Writer(Repeating):
    """Publishes about `rate` changes per second until `stop`, except while it rests or waits."""

    def __init__(
        self, stage: Stage, core: Core, rate: float, seed: int = 1, *, rests: bool = False, waits: bool = False
    ) -> None:
        """`rests`: now and then, nothing is published. `waits`: nor is it while the projectors are more than
        `_MAX_BEHIND` records behind, because a slow machine would never catch up.
        """
        super().__init__(_TICK_SECONDS)
        self.stage = stage
        self.core = core
        self._changes = core.more()
        self._random = Random(seed)
        self._each = max(1, round(rate * _TICK_SECONDS))
        self._rests = rests
        self._waits = waits
        self._work_seconds = self._random.uniform(*_WORK_SECONDS)
        self._messages: dict[tuple[Entity, str], Message] = {}
        """What made each version of a document, by what the document shows."""
        self.number = 0

    def publish(self, changes: Iterable[Change]) -> None:
        stage, published = self.stage, self.stage.history.published
        with stage.publishing:
            sent = list(changes)
            states = [published.add(change.register, change.value) for change in sent if change.register]
            stage.leadview.topics.bad_keys |= {change.message.key for change in sent if change.bad}
            stage.leadview.publish_all(change.message for change in sent)
            for state in states:
                state.acked_at = now()
            for change in sent:
                if change.register and change.value is not None:
                    self._messages[change.register, change.value] = change.message
            self.number += len(sent)

    @lru_cache(maxsize=10_000)  # noqa: B019 - a writer lives as long as a run
    def bodies(self, register: Entity, shown: str, contact_shown: str | None) -> frozenset[bytes]:
        """Returns the bodies of a version, for a lead with this version of its contact; none if there is no such one.

        A lead has one for each mapping, because a deployment of the next mapping may be going on.
        """
        match self._event(register, shown):
            case events.Contact() as contact:
                return frozenset((msgspec.json.encode(mapping.contact_document(contact)),))
            case events.Lead() as lead:
                found = self._event((resources.CONTACT, lead.organization_id, lead.contact_id), contact_shown)
                if contact_shown is None or found:
                    shows = mapping.contact_document(found) if isinstance(found, events.Contact) else None
                    summary = mapping.contact_summary(shows) if shows else None
                    made = (lead_document(lead) for lead_document in _LEAD_MAPPINGS)
                    whole = (msgspec.structs.replace(document, contact=summary) for document in made)
                    return frozenset(map(msgspec.json.encode, whole))
        return frozenset()

    def _event(self, register: Entity, shown: str | None) -> object:
        message = self._messages.get((register, shown or ""))
        return read(message.record()).entity if message else None

    def _work(self) -> None:
        if self._waits and self.stage.leadview.behind() > _MAX_BEHIND:
            return
        self.publish(islice(self._changes, self._each))
        self._work_seconds -= _TICK_SECONDS
        if self._rests and self._work_seconds < 0:
            self._ended.wait(self._random.uniform(*_REST_SECONDS))
            self._work_seconds = self._random.uniform(*_WORK_SECONDS)


def first(organization: str = crm.ORGANIZATION, *, leads: int, contacts: int) -> list[Message]:
    core = Core(1, [organization], leads=leads, contacts=contacts)
    return [change.message for change in core.first()]


def writer_to(leadview: Leadview, rate: float = 0.0, *, leads: int, contacts: int) -> Writer:
    """Returns a writer that has published an organization, with this number of leads and contacts, and may start."""
    core = Core(1, [crm.ORGANIZATION], leads=leads, contacts=contacts, calm=True)
    writer = Writer(Stage(leadview), core, rate, waits=True)
    writer.publish(core.first())
    return writer


def traffic(*, leads: int = 40, contacts: int = 12) -> Iterator[Message]:
    """Yields changes of the leads and contacts of two organizations, without end."""
    core = Core(1, (crm.ORGANIZATION, crm.OTHER_ORGANIZATION), leads=leads, contacts=contacts, calm=True)
    return (change.message for change in core.more())
