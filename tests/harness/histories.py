"""Histories for property tests: what an honest core product may publish, with few ids, so that events meet often.

Versions of an entity grow, with gaps, and time passes. Half-way the topics may get a second partition, to which some
entities move. Events may be published twice. There are changes without end as well, and readers that check that no
version goes back.
"""

import http.client
import time
from collections.abc import Collection, Iterator
from random import Random
from typing import Any

import msgspec
import orjson
from hypothesis import strategies as st

from devstack.threads import Repeating
from projector.record import Record
from projector.reference import Entity
from schemas import api_keys, resources
from tests.harness import api_server, crm
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.waiting import PATIENCE_SECONDS, Stopwatch, wait_until

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


def traffic(seed: int, events: int, *, contacts: int = 40, leads: int = 150) -> Iterator[Message]:
    """Yields this number of events of two organizations, as an honest core product sends them, structured and binary.

    The versions of a higher seed are higher than those of a lower one.
    """
    random = Random(seed)
    versions: dict[Entity, int] = {}
    for number in range(events):
        kind = random.choices([resources.LEAD, resources.CONTACT], [3, 1])[0]
        pool = _lead_id if kind is resources.LEAD else _contact_id
        entity = (
            kind,
            random.choice(ORGANIZATIONS),
            pool(random.randrange(leads if kind is resources.LEAD else contacts)),
        )
        versions[entity] = versions.get(entity, seed * 100_000) + random.randint(1, 3)
        verb = random.choices(["changed", "deleted", "tombstone"], [20, 2, 1])[0]
        happening = Happening(entity, verb, 0, 0, moved=False)
        message = _message(happening, versions[entity], number)
        if verb == "changed" and kind is resources.LEAD:
            contact_id = _contact_id(random.randrange(contacts))
            ids = {"id": entity[2], "organization_id": entity[1], "contact_id": contact_id}
            message = crm.lead(versions[entity], seconds=number, referrer=f"event {number}", **ids)
        elif verb == "changed":
            ids = {"id": entity[2], "organization_id": entity[1]}
            message = crm.contact(versions[entity], seconds=number, first_name=f"Name {number % 7}", **ids)
        yield crm.binary(message) if message.value and random.random() < 0.3 else message


def _lead_id(number: int) -> str:
    return crm.uuid(0x100000 + number)


def _contact_id(number: int) -> str:
    return crm.uuid(0xC00000 + number)


STOOD_STILL_SECONDS = 0.2
MAX_BEHIND = 500
_TICK_SECONDS = 0.05
_READ_PAUSE_SECONDS = 0.002
"""So that readers leave something of a processor to the programs that are tested."""
UNLIMITED = {scope: {"quota": 10**6, "window_seconds": 1} for scope in ("key", "organization")}


class Changes:
    """All events of an organization, from one seed. `referrer` and `first_name` show the version.

    The first `steady` leads and contacts are never deleted.
    """

    def __init__(self, leads: int, contacts: int, *, organization: str = crm.ORGANIZATION, seed: int = 1) -> None:
        self.organization = organization
        self.key = api_keys.mint(organization, "0" * 30)
        self._random = Random(seed)
        base = int(organization.replace("-", ""), 16) % 2**40 * 2**20
        self.leads = [crm.uuid(base + number) for number in range(leads)]
        self.contacts = [crm.uuid(base + 2**19 + number) for number in range(contacts)]
        self.steady = min(leads, contacts) // 2
        self._versions: dict[str, int] = {}

    def initial(self) -> Iterator[Message]:
        """Yields the organization, its key, and every lead and contact; some contacts come after their leads."""
        own = self.organization
        yield crm.organization(id=own, organization_id=own, rate_limits=UNLIMITED)
        yield crm.api_key(organization_id=own, hash=api_keys.key_hash(self.key))
        early = len(self.contacts) // 2
        yield from (self._contact(id_) for id_ in self.contacts[:early])
        yield from (self._lead(id_) for id_ in self.leads)
        yield from (self._contact(id_) for id_ in self.contacts[early:])

    def more(self) -> Iterator[Message]:
        """Yields changes without end: of leads and contacts, with some moves, deletes and re-creations."""
        while True:
            kind = self._random.choice((resources.LEAD, resources.LEAD, resources.CONTACT))
            ids, make = (self.leads, self._lead) if kind is resources.LEAD else (self.contacts, self._contact)
            id_ = self._random.choice(ids)
            if self._random.random() < 0.1 and id_ not in ids[: self.steady]:
                yield crm.deleted(kind, self._next(id_), id_, self.organization)
            else:
                yield make(id_)

    def _lead(self, id_: str) -> Message:
        version = self._next(id_)
        contact = self._random.choice(self.contacts) if version == 1 or self._random.random() < 0.2 else None
        contact = contact or self.contacts[self.leads.index(id_) % len(self.contacts)]
        return crm.lead(version, id=id_, organization_id=self.organization, contact_id=contact, referrer=f"v{version}")

    def _contact(self, id_: str) -> Message:
        version = self._next(id_)
        return crm.contact(version, id=id_, organization_id=self.organization, first_name=f"v{version}")

    def _next(self, id_: str) -> int:
        self._versions[id_] = self._versions.get(id_, 0) + 1
        return self._versions[id_]


class Writer(Repeating):
    """Publishes changes, about `rate` a second, until `stop`.

    It pauses while the projectors are more than `MAX_BEHIND` records behind: a slow machine would never catch up.
    """

    def __init__(self, leadview: Leadview, changes: Changes, rate: int) -> None:
        super().__init__(_TICK_SECONDS)
        self._leadview = leadview
        self._changes = changes.more()
        self._each = max(1, round(rate * _TICK_SECONDS))

    def _work(self) -> None:
        if self._leadview.behind() < MAX_BEHIND:
            self._leadview.publish_all(next(self._changes) for _ in range(self._each))


class Reader(Repeating):
    """Reads the steady records over HTTP all the time until `stop`: each response is 200, no version goes back.

    A response 503 is right if the machine stood still meanwhile, so that the API had no reply of Redis in time.
    """

    def __init__(self, port: int, changes: Changes, seed: int) -> None:
        super().__init__(_READ_PAUSE_SECONDS)
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_SECONDS)
        self._changes = changes
        self._random = Random(seed)
        self._stopwatch = Stopwatch()
        self._newest: dict[str, int] = {}
        steady = changes.steady
        self._paths = [api_server.LEADS + id_ for id_ in changes.leads[:steady]]
        self._paths += [api_server.CONTACTS + id_ for id_ in changes.contacts[:steady]]
        self.answers = 0
        self.wrong: list[str] = []

    def run(self) -> None:
        with self._stopwatch:
            super().run()

    def _work(self) -> None:
        path, lost = self._random.choice(self._paths), self._stopwatch.lost
        self._connection.request("GET", path, headers={"Authorization": f"Bearer {self._changes.key}"})
        answer = self._connection.getresponse()
        body = answer.read()
        self.answers += 1
        if answer.status == 200:
            self._check(path, orjson.loads(body))
        elif answer.status != 503 or self._stopwatch.lost - lost < STOOD_STILL_SECONDS:
            self.wrong.append(f"{path}: {answer.status} {body!r}")

    def stop(self, timeout: float | None = None) -> None:
        """End, and fail if anything was wrong."""
        wait_until(lambda: self.answers > 50 or not self.is_alive(), "the reader has read enough")
        super().stop(timeout)
        self._connection.close()
        assert not self.wrong, self.wrong[:10]
        assert self.answers > 50

    def _check(self, path: str, document: dict[str, Any]) -> None:
        self._see(path, document.get("referrer") or document["first_name"])
        contact = document.get("contact")
        if contact and contact["id"] in self._changes.contacts[: self._changes.steady]:
            # A lead's own view: the contact may be ahead in its own document for the moment of a fan-out.
            self._see(f"{path} of {contact['id']}", contact["first_name"])

    def _see(self, what: str, shown: str) -> None:
        version = int(shown.removeprefix("v"))
        if version < self._newest.get(what, 0):
            self.wrong.append(f"{what}: version {version} after {self._newest[what]}")
        self._newest[what] = version


def now_ms() -> int:
    return int(time.time() * 1000)
