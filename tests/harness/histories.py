"""Histories for property tests: what an honest core product may publish, with few ids, so that events meet often.

Versions of an entity grow, with gaps, and time passes. Half-way the topics may get a second partition, to which some
entities move. Events may be published twice.
"""

import time
from collections.abc import Collection, Iterator
from random import Random
from typing import Any

import msgspec
from hypothesis import strategies as st

from projector.record import Record
from projector.reference import Entity
from schemas import resources
from tests.harness import crm
from tests.harness.crm import Message

ORGANIZATIONS = (crm.ORGANIZATION, crm.OTHER_ORGANIZATION)
CONTACTS = (crm.CONTACT, crm.OTHER_CONTACT)
LEADS = (crm.LEAD, crm.OTHER_LEAD, crm.uuid(0x13))
API_KEYS = (crm.API_KEY, crm.uuid(0xF2))
OTHERS = (crm.uuid(0xE1), crm.uuid(0xE2))
"""The ids of each resource without a pool of its own."""
_IDS: dict[resources.Kind, tuple[str, ...]] = {resources.LEAD: LEADS, resources.CONTACT: CONTACTS}
_FIRST_VERSION = 8  # 9 to 10 is never far


class Happening(msgspec.Struct, frozen=True):
    """One thing that the core product does. `choice` selects the contact, the name or the hash. The version grows by
    `gap`, which also selects the state of an API key."""

    entity: Entity
    verb: str
    choice: int
    gap: int
    moved: bool
    """Published to the second partition, once there is one."""


class History(msgspec.Struct):
    """The topics, by kind and partition: records in the order of their offsets."""

    partitions: dict[tuple[resources.Kind, int], list[Record]] = {}

    def records(self) -> list[Record]:
        """Returns all records, partition after partition."""
        return [record for records in self.partitions.values() for record in records]

    def of(self, kinds: Collection[resources.Kind]) -> "History":
        """Returns the topics of these kinds only."""
        return History({place: records for place, records in self.partitions.items() if place[0] in kinds})

    def at(self, kind: resources.Kind, partition: int, offset: int) -> Record:
        return self.partitions[kind, partition][offset]

    def add(self, message: Message, partition: int) -> None:
        place = self.partitions.setdefault((message.kind, partition), [])
        place.append(message.record(len(place), partition))

    def compacted(self) -> "History":
        """Returns the same topics with only the last record of each message key."""
        return History(
            {
                place: list({record.key: record for record in records}.values())
                for place, records in self.partitions.items()
            }
        )

    def compacted_long_ago(self) -> "History":
        """Returns the same topics when Kafka has removed the tombstones as well, as it does after a day.

        Those of an entity that moved to another partition stay: without them, its former partition would bring it back.
        """
        last = self.compacted()
        found = [record.key for record in last.records()]
        return History(
            {
                place: [record for record in records if record.value is not None or found.count(record.key) > 1]
                for place, records in last.partitions.items()
            }
        )


def _entities() -> list[Entity]:
    found: list[Entity] = []
    for organization_id in ORGANIZATIONS:
        for resource in resources.AS_SPECIFIED:
            found += [(resource, organization_id, id_) for id_ in _IDS.get(resource, OTHERS)]
        found += [(resources.API_KEY, organization_id, key_id) for key_id in API_KEYS]
        found.append((resources.ORGANIZATION, organization_id, organization_id))
    return found


_HAPPENINGS = st.builds(
    Happening,
    entity=st.sampled_from(_entities()),
    verb=st.sampled_from(["changed", "changed", "changed", "deleted", "tombstone", "again"]),
    choice=st.integers(0, 2),
    gap=st.integers(1, 3),
    moved=st.booleans(),
)


@st.composite
def histories(draw: st.DrawFn, *, again: bool = True) -> History:
    """A history of up to 40 events; `again` allows that old ones are published once more."""
    length = draw(st.integers(0, 40))
    happenings = draw(st.lists(_HAPPENINGS, min_size=length, max_size=length))
    split = draw(st.integers(0, len(happenings)))
    history = History({})
    versions: dict[Entity, int] = {}
    published: dict[Entity, Message] = {}
    for second, happening in enumerate(happenings):
        partition = int(happening.moved and second >= split)
        entity = happening.entity
        if happening.verb == "again":
            if again and entity in published:
                history.add(published[entity], partition)
            continue
        versions[entity] = versions.get(entity, _FIRST_VERSION) + happening.gap
        message = _message(happening, versions[entity], second)
        published[entity] = message
        history.add(message, partition)
    return history


_KINDS = (resources.LEAD, resources.CONTACT, resources.API_KEY, resources.ORGANIZATION)


class _Step(msgspec.Struct, frozen=True):
    """`version` is the version or what it grows by; `late` the milliseconds since the step before it, by Kafka's clock;
    `clock` how far that of the producer is off, in seconds."""

    kind: resources.Kind
    verb: str
    version: int
    choice: int
    partition: int
    late: int
    clock: int


def _steps(kinds: Collection[resources.Kind]) -> st.SearchStrategy[list[_Step]]:
    step = st.builds(
        _Step,
        kind=st.sampled_from(sorted(kinds, key=lambda kind: kind.topic)),
        verb=st.sampled_from(["changed", "changed", "deleted", "tombstone"]),
        version=st.integers(1, 4),
        choice=st.integers(0, 1),
        partition=st.integers(0, 1),
        late=st.integers(0, 1),
        clock=st.integers(-5, 5),
    )
    return st.lists(step, max_size=12)


@st.composite
def in_the_same_moment(draw: st.DrawFn) -> History:
    """A history of entities that move between two partitions all the time. Records of both may have the same time, and
    the clocks of the producers are off.

    Nothing is published in the millisecond of a tombstone, but before it: which of two such records is the newest would
    depend on which partition is read first.
    """
    history, time_ms, version, least = History({}), crm.at_ms(0), 1, 0
    for step in draw(_steps((resources.LEAD, resources.CONTACT))):
        time_ms, version = time_ms + max(step.late, least), version + step.version
        least = int(step.verb == "tombstone")
        _publish(history, step, version, step.partition, time_ms)
    return history


@st.composite
def disorders(draw: st.DrawFn) -> History:
    """A history in which versions go back, or come twice. No organization is deleted."""
    history = History({})
    for second, step in enumerate(draw(_steps(_KINDS))):
        if step.kind is resources.ORGANIZATION:
            step = msgspec.structs.replace(step, verb="changed")  # noqa: PLW2901
        _publish(history, step, step.version, 0, crm.at_ms(second))
    return history


def _publish(history: History, step: _Step, version: int, partition: int, time_ms: int) -> None:
    entity_id = _IDS.get(step.kind, (crm.ORGANIZATION if step.kind is resources.ORGANIZATION else API_KEYS[0],))[0]
    entity = (step.kind, crm.ORGANIZATION, entity_id)
    message = _message(Happening(entity, step.verb, step.choice, 1, False), version, step.clock)
    place = history.partitions.setdefault((step.kind, partition), [])
    place.append(msgspec.structs.replace(message.record(len(place), partition), timestamp=time_ms))


def merged(history: History, random: Random) -> Iterator[list[Record]]:
    """Yields all records in batches: those of a partition in order, the partitions at random, some records twice."""
    read = dict.fromkeys(history.partitions, 0)
    while left := [place for place, count in read.items() if count < len(history.partitions[place])]:
        batch: list[Record] = []
        for _ in range(random.randint(1, 8)):
            place, most = random.choice(left), random.randint(1, 3)
            records = history.partitions[place][read[place] : read[place] + most]
            batch += records
            read[place] += len(records)
        yield batch
        if random.random() < 0.2:  # a crash before the checkpoint
            place = random.choice(list(read))
            read[place] = max(0, read[place] - random.randint(1, 4))


def _message(happening: Happening, version: int, second: int) -> Message:
    kind, organization_id, entity_id = happening.entity
    if happening.verb == "deleted":
        return crm.deleted(kind, version, entity_id, organization_id, seconds=second)
    if happening.verb == "tombstone":
        return crm.tombstone(kind, entity_id, organization_id, seconds=second)
    ids = {"id": entity_id, "organization_id": organization_id, "seconds": second}
    return _changed(kind, version, happening.choice, happening.gap, ids)


def _changed(kind: resources.Kind, version: int, choice: int, gap: int, ids: dict[str, Any]) -> Message:
    match kind:
        case resources.LEAD:
            contact_id = (*CONTACTS, crm.uuid(0xC3))[choice]
            return crm.lead(version, contact_id=contact_id, referrer=f"version {version}", **ids)
        case resources.CONTACT:
            return crm.contact(version, first_name=("Ada", "Grace", "Zoë")[choice], **ids)
        case resources.ORGANIZATION:
            return crm.organization(version, api_access=choice > 0, **ids)
        case resources.Resource():
            example = msgspec.to_builtins(kind.event_example if choice else crm.minimal(kind))
            seconds = ids.pop("seconds")
            return crm.changed(kind, example | ids | {"version": version}, seconds)
        case _:
            number = (0, 1, int(ids["id"][-2:], 16))[choice]  # all API keys may have the first two hashes
            state: Any = ({}, {"status": "revoked"}, {"expires_at": crm.at(version * 3600)})[gap - 1]
            return crm.api_key(version, hash=crm.key_hash(number), **state, **ids)


def now_ms() -> int:
    return int(time.time() * 1000)
