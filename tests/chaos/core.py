"""The core product of a chaos run: three organizations that keep changing, the same for the same seed.

Ids are the same in all organizations, so that a mixed-up answer shows. A lead shows its version as referrer, a contact
as first name. The third organization is now and then deleted and created again.
"""

from collections.abc import Iterator
from random import Random
from typing import Any

from msgspec import Struct

from projector.reference import Entity
from schemas import api_keys, resources
from tests.harness import crm
from tests.harness.crm import Message

ORGANIZATIONS = (crm.uuid(0xA1), crm.uuid(0xA4), crm.uuid(0xA3))
"""On a cluster of three primaries that share the slots evenly, each has one of them."""
STEADY, SWITCHED, DELETED = ORGANIZATIONS
KEY_IDS = (crm.uuid(0xF1), crm.uuid(0xF2))
"""The first is always active, the second is revoked now and then."""
_UNLIMITED = {scope: {"quota": 10**6, "window_seconds": 1} for scope in ("key", "organization")}
_STEP_SECONDS = 0.01
_HOSTILE_SHARE = 0.25
"""Of bad records."""


class Change(Struct, frozen=True):
    """A message, and what it changes: `register` is None if it changes nothing (a duplicate, a bad record)."""

    message: Message
    register: Entity | None
    value: str | None = None
    bad: bool = False


class Core:
    """Makes changes without end. `first` has to be published before `more`."""

    def __init__(
        self, seed: int, *, leads: int = 40, contacts: int = 12, bad_share: float = 0.004, hostile_bytes: int = 0
    ) -> None:
        """`hostile_bytes` is the size of the largest hostile record; 0: there is none."""
        self.leads = [crm.uuid(0x100000 + number) for number in range(leads)]
        self.contacts = [crm.uuid(0xC00000 + number) for number in range(contacts)]
        self.unknown = crm.uuid(0xDEAD)
        self._random = Random(seed)
        self._bad_share = bad_share
        self._hostile_bytes = hostile_bytes
        self._versions: dict[Entity, int] = {}
        self._contact_of: dict[Entity, str] = {}
        self._off: set[Entity] = set()
        self._newest: dict[Entity, Message] = {}
        self._number = 0

    def first(self) -> Iterator[Change]:
        """Every organization with its keys, leads and contacts; some contacts come after their leads."""
        for organization in ORGANIZATIONS:
            yield self._organization(organization)
            yield from (self._key(organization, key_id) for key_id in KEY_IDS)
            early = len(self.contacts) // 2
            yield from (self._contact(organization, id_) for id_ in self.contacts[:early])
            yield from (self._lead(organization, id_) for id_ in self.leads)
            yield from (self._contact(organization, id_) for id_ in self.contacts[early:])

    def more(self) -> Iterator[Change]:
        while True:
            yield self._next()

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

    def _next(self) -> Change:
        organization = self._random.choice(ORGANIZATIONS)
        chance = self._random.random()
        if chance < self._bad_share:
            return self._bad(organization)
        if chance < 0.03:
            return Change(self._random.choice(list(self._newest.values())), None)  # published twice
        if chance < 0.045:
            return self._switch_key(organization)
        if chance < 0.048:
            return self._switch_organization(organization)
        if chance < 0.40:
            return self._any(resources.CONTACT, organization, self.contacts)
        return self._any(resources.LEAD, organization, self.leads)

    def _any(self, kind: resources.Kind, organization: str, ids: list[str]) -> Change:
        """The first quarter of them is never deleted: a 404 there is always wrong."""
        id_ = self._random.choice(ids)
        verb = self._random.random()
        if ids.index(id_) >= len(ids) // 4 and verb < 0.12:
            return self._gone(kind, organization, id_, tombstone=verb < 0.04)
        return self._lead(organization, id_) if kind is resources.LEAD else self._contact(organization, id_)

    def _lead(self, organization: str, id_: str) -> Change:
        entity = (resources.LEAD, organization, id_)
        if entity not in self._contact_of or self._random.random() < 0.2:
            self._contact_of[entity] = self._random.choice(self.contacts)
        version = self._version(entity)
        text = f"v{version}"
        fields = self._fields(entity) | {"contact_id": self._contact_of[entity], "referrer": text}
        return self._change(crm.lead(version, **fields), entity, text)

    def _contact(self, organization: str, id_: str) -> Change:
        entity = (resources.CONTACT, organization, id_)
        version = self._version(entity)
        text = f"v{version}"
        return self._change(crm.contact(version, **self._fields(entity), first_name=text), entity, text)

    def _gone(self, kind: resources.Kind, organization: str, id_: str, *, tombstone: bool) -> Change:
        entity = (kind, organization, id_)
        if tombstone:
            return self._change(crm.tombstone(kind, id_, organization, self._seconds()), entity, None)
        return self._change(crm.deleted(kind, self._version(entity), id_, organization, self._seconds()), entity, None)

    def _switch_key(self, organization: str) -> Change:
        entity = (resources.API_KEY, organization, KEY_IDS[1])
        self._off ^= {entity}
        return self._key(organization, KEY_IDS[1])

    def _switch_organization(self, organization: str) -> Change:
        entity = (resources.ORGANIZATION, organization, organization)
        if organization == STEADY:
            return self._any(resources.LEAD, organization, self.leads)
        self._off ^= {entity}
        if organization == DELETED and entity in self._off:
            return self._gone(resources.ORGANIZATION, organization, organization, tombstone=False)
        return self._organization(organization)

    def _organization(self, organization: str) -> Change:
        entity = (resources.ORGANIZATION, organization, organization)
        on = entity not in self._off
        fields = self._fields(entity) | {"api_access": on, "rate_limits": _UNLIMITED}
        return self._change(crm.organization(self._version(entity), **fields), entity, "on" if on else "off")

    def _key(self, organization: str, key_id: str) -> Change:
        entity = (resources.API_KEY, organization, key_id)
        status = "revoked" if entity in self._off else "active"
        fields = self._fields(entity) | {"hash": api_keys.key_hash(key_text(entity)), "status": status}
        return self._change(crm.api_key(self._version(entity), **fields), entity, status)

    def _bad(self, organization: str) -> Change:
        self._number += 1
        # A key of its own: under a lead's, compaction would leave nothing else of the lead.
        key = crm.message_key(resources.LEAD, organization, crm.uuid(0xBAD00000 + self._number))
        return Change(Message(resources.LEAD, key, self._bad_value(), seconds=self._seconds()), None, bad=True)

    def _bad_value(self) -> bytes:
        """Now and then, a text that never ends, too deep in lists: it must cost no more than another bad record."""
        if self._hostile_bytes and self._random.random() < _HOSTILE_SHARE:
            depth, size = 10_001, self._random.randint(self._hostile_bytes // 2, self._hostile_bytes)
            return b"[" * depth + b'\\"' * max(1, (size - depth) // 2)
        return b"{"

    def _change(self, message: Message, entity: Entity, value: str | None) -> Change:
        if message.value is not None and self._random.random() < 0.3:
            message = crm.binary(message)
        self._newest.pop(entity, None)
        if message.value is not None:
            self._newest[entity] = message
        return Change(message, entity, value)

    def _fields(self, entity: Entity) -> dict[str, Any]:
        return {"id": entity[2], "organization_id": entity[1], "seconds": self._seconds()}

    def _version(self, entity: Entity) -> int:
        self._versions[entity] = self._versions.get(entity, 7) + self._random.randint(1, 3)
        return self._versions[entity]

    def _seconds(self) -> float:
        """Returns the time of the next event. It grows with each event: it orders those of different partitions."""
        self._number += 1
        return self._number * _STEP_SECONDS


def key_text(entity: Entity) -> str:
    """The API key itself of a key's register."""
    return api_keys.mint(entity[1], entity[2].replace("-", "")[-30:])
