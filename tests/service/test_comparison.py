"""After a break that the topics can heal, projectors compare Redis with them, and end the break without an operator:
what Kafka no longer has is deleted, what is missing or wrong is written again. And comparisons in parts.
"""

import asyncio
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from msgspec.structs import replace

from devstack.apache_kafka import ApacheKafka
from devstack.redis_server import RedisServer
from projector.kafka.partitioner import murmur2, partition_of
from projector.ledger import breaks, copies
from projector.ledger.control import ACCESS, Break, BreakKind
from projector.redis.store import Store
from projector.upkeep import comparison
from projector.verify.parts import Part, most_entities, parts_of
from schemas import names, resources
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.api_server import CONTACTS, LEADS
from tests.harness.generations import ids
from tests.harness.leadview import Leadview
from tests.harness.projection import Projection
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

OTHER = crm.OTHER_ORGANIZATION
OTHER_KEY = crm.uuid(0xF2)
KEPT_KEY = crm.uuid(0xF3)
KEPT_LEAD, KEPT_CONTACT = crm.uuid(0x13), crm.uuid(0xC3)
COMPACTED_AT_ONCE = {
    "segment.ms": "1000",
    "min.cleanable.dirty.ratio": "0.01",
    "max.compaction.lag.ms": "1000",
    "delete.retention.ms": "100",
}


def note(leadview: Leadview, kind: BreakKind, *topics: str) -> None:
    """Note a break of each of these topics, as a projector does that notices one."""

    async def noted() -> bool:
        store = Store(ProjectorSettings(redis_url=leadview.server.url))
        try:
            record = await copies.require(store)
            found = [breaks.new_break(record, kind, topic, "", "") for topic in topics]
            if kind == "evicted":
                found = [replace(one, unverified=(ACCESS, *record.state.written)) for one in found]
            return await breaks.note(store, record, found)
        finally:
            await store.close()

    wait_until(lambda: asyncio.run(noted()), "the break is noted")


def has_no_break(leadview: Leadview) -> bool:
    return leadview.state().breaks == ()


def keys_in(leadview: Leadview, kind: resources.Kind, partitions: Iterable[int]) -> set[bytes]:
    """Returns the message keys in these partitions of a topic."""
    found: set[bytes] = set()
    settings = {"bootstrap.servers": leadview.kafka.bootstrap_servers, "group.id": "any", "enable.partition.eof": True}
    consumer = Consumer({**settings, "log_level": 0})
    try:
        for partition in partitions:
            consumer.assign([TopicPartition(leadview.topics.name(kind), partition, 0)])
            while True:
                message: Any = consumer.poll(PATIENCE_SECONDS)
                assert message is not None
                if message.error():
                    break
                found.add(message.key())
    finally:
        consumer.close()
    return found


def filler(kind: resources.Kind, version: int, partition: int, number: int) -> crm.Message:
    """Returns a record for this one of a number of partitions. Kafka begins another segment with a record that is a
    second later, by its own timestamp.
    """
    make = {
        resources.LEAD: crm.lead,
        resources.CONTACT: crm.contact,
        resources.API_KEY: crm.api_key,
        resources.ORGANIZATION: crm.organization,
    }[kind]
    for own in range(0xFF00, 0xFFFF):
        id_ = crm.uuid(own)
        fields: dict[str, Any] = {"id": id_}
        if kind is resources.API_KEY:
            fields["hash"] = crm.key_hash(99)
        if kind is resources.ORGANIZATION:
            fields["organization_id"] = id_
        message = make(version, seconds=10_000 + 10 * version, **fields)
        if partition_of(message.key, number) == partition:
            return message
    raise AssertionError


def wait_until_compacted(
    leadview: Leadview, deleted: Iterable[crm.Message], partitions: tuple[int, ...] = (0,)
) -> None:
    """Wait until these partitions have nothing any more of these entities, not even their tombstones. Each look
    publishes another record, because Kafka compacts nothing of the segment that it writes.
    """
    versions: Iterator[int] = iter(range(2, 1_000_000))
    gone: dict[resources.Kind, set[bytes]] = {}
    for message in deleted:
        gone.setdefault(message.kind, set()).add(message.key)
    leadview.topics.alter("broker", "1", {"log.cleaner.backoff.ms": "300"})
    for kind in gone:
        leadview.topics.alter("topic", leadview.topics.name(kind), COMPACTED_AT_ONCE)

    def is_gone() -> bool:
        version = next(versions)
        for kind in gone:
            for partition in partitions:
                leadview.publish(filler(kind, version, partition, max(partitions) + 1))
        return not any(keys & keys_in(leadview, kind, partitions) for kind, keys in gone.items())

    wait_until(is_gone, "Kafka has nothing of them any more", 4 * PATIENCE_SECONDS, interval=0.5)


@pytest.fixture
def own_kafka(tmp_path: Path) -> Iterator[Leadview]:
    """A Leadview on a Kafka and a Redis of its own, with topics of one partition."""
    (tmp_path / "leadview").mkdir()
    with ExitStack() as stack:
        broker = stack.enter_context(ApacheKafka.start(tmp_path / "kafka"))
        redis = stack.enter_context(RedisServer.start(tmp_path / "redis"))
        kafka = Kafka("apache", broker.bootstrap_servers, broker.create_topic)
        leadview = Leadview(kafka, "crm.", redis, tmp_path / "leadview", kafka_session_timeout=2)
        leadview.topics.create(partitions=1)
        yield stack.enter_context(leadview)


def publish_all(leadview: Leadview) -> None:
    other: dict[str, Any] = {"organization_id": OTHER}
    leadview.publish(
        crm.organization(),
        crm.api_key(),
        crm.api_key(id=KEPT_KEY, hash=crm.key_hash(3)),
        crm.contact(),
        crm.lead(),
        crm.lead(id=crm.OTHER_LEAD),
        crm.contact(id=KEPT_CONTACT),
        crm.lead(id=KEPT_LEAD, contact_id=KEPT_CONTACT),
        crm.organization(id=OTHER, **other),
        crm.api_key(id=OTHER_KEY, hash=crm.key_hash(2), **other),
        crm.contact(id=crm.OTHER_CONTACT, **other),
    )


@pytest.mark.apache
def test_deletions_that_compaction_removed_before_they_were_read(own_kafka: Leadview) -> None:
    """A key, a lead, a contact and an organization. No projector has ever seen their tombstones."""
    leadview = own_kafka
    publish_all(leadview)
    leadview.serve().stop()
    deleted = [
        crm.tombstone(resources.API_KEY),
        crm.tombstone(resources.LEAD),
        crm.tombstone(resources.CONTACT),
        crm.tombstone(resources.ORGANIZATION, organization_id=OTHER),
        crm.tombstone(resources.CONTACT, crm.OTHER_CONTACT, OTHER),
        crm.tombstone(resources.API_KEY, OTHER_KEY, OTHER),
    ]
    leadview.publish(*deleted)
    wait_until_compacted(leadview, deleted)
    leadview.start("run")
    leadview.wait_until_current()
    note(leadview, "deletes_missed", *(leadview.topics.name(kind) for kind in resources.KINDS))
    with leadview.api() as api:
        wait_until(lambda: api.get(LEADS + crm.OTHER_LEAD, key=crm.KEY).status == 401, "the key is refused")
        wait_until(lambda: has_no_break(leadview), "the break has ended", 2 * PATIENCE_SECONDS)
    assert leadview.documents() == leadview.expected()
    assert not any(entity[2] == crm.LEAD for entity in leadview.documents())
    wait_until(lambda: not leadview.redis.exists(names.JOBS), "the deleted organization is erased")
    for words in (("verify",), ("verify", "--access")):
        leadview.run(*words).ends(0, "no difference")
    assert not [*leadview.redis.scan_iter(names.organization(OTHER) + b"[ak]*")]
    # What comes later is applied: the markers stand in nobody's way.
    leadview.publish(crm.api_key(2), crm.lead(2), crm.contact(2))
    leadview.wait_until_current()
    assert leadview.documents() == leadview.expected()
    leadview.run("verify", "--access").ends(0, "no difference")


@pytest.mark.apache
def test_what_was_evicted_comes_back(leadview: Leadview) -> None:
    """Documents, the index of a contact, an API key, the record of a hash, and an organization."""
    publish_all(leadview)
    leadview.publish_all(crm.lead(id=crm.uuid(0x7000 + number)) for number in range(300))
    leadview.serve()
    expected, generation = leadview.documents(), leadview.generation(1)
    owner, other = names.organization(crm.ORGANIZATION), names.organization(OTHER)
    for name in (
        names.document(resources.LEAD, owner, generation, crm.LEAD),
        names.document(resources.CONTACT, owner, generation, KEPT_CONTACT),
        names.contact_leads(owner, generation, crm.CONTACT),
        names.api_key(owner, crm.key_hash(1)),
        names.api_key_entity(owner, KEPT_KEY),
        other,
    ):
        assert leadview.redis.delete(name) == 1
    with leadview.api() as api:
        assert api.get(LEADS + crm.LEAD, key=crm.KEY).status == 401
        note(leadview, "evicted", "")
        wait_until(lambda: api.get(LEADS + crm.LEAD, key=crm.KEY).status == 200, "the key and the lead are there")
        wait_until(lambda: has_no_break(leadview), "the break has ended", 2 * PATIENCE_SECONDS)
        assert api.get(CONTACTS + KEPT_CONTACT, key=crm.KEY).status == 200
    assert leadview.documents() == expected == leadview.expected()
    for words in (("verify",), ("verify", "--access")):
        leadview.run(*words).ends(0, "no difference")


@pytest.mark.apache
def test_nothing_is_deleted_of_a_topic_that_has_lost_its_history(leadview: Leadview) -> None:
    """What the topic does not have any more is no proof: only an operator may delete it."""
    publish_all(leadview)
    leadview.serve()
    leadview.topics.recreate(resources.CONTACT, 1)
    contacts = leadview.topics.name(resources.CONTACT)
    wait_until(lambda: any(it.topic == contacts for it in leadview.state().breaks), "a projector notices it")
    before = leadview.documents()
    note(leadview, "deletes_missed", leadview.topics.name(resources.LEAD), contacts)
    wait_until(
        lambda: {it.kind for it in leadview.state().breaks} == {"topic_recreated"},
        "the other break has ended",
        2 * PATIENCE_SECONDS,
    )
    assert leadview.documents() == before


def test_verify_takes_the_organizations_in_parts(leadview: Leadview) -> None:
    """However many there are, no more entities are kept at once than fit into the memory of the setting."""
    organizations = [crm.uuid(0xA000 + number) for number in range(60)]
    for organization_id in organizations:
        own: dict[str, Any] = {"organization_id": organization_id}
        leadview.publish(crm.organization(id=organization_id, **own), crm.contact(**own), crm.api_key(**own))
        leadview.publish_all(crm.lead(id=crm.uuid(0x9000 + number), **own) for number in range(40))
    leadview.serve()
    lost = names.document(
        resources.LEAD, names.organization(organizations[7]), leadview.generation(1), crm.uuid(0x9003)
    )
    leadview.redis.delete(lost)
    report = leadview.run("verify", "--json", verify_memory=1).ends(1).json
    assert (report["checked"]["leads"], report["missing"], report["differences"]) == (60 * 40, 1, 1)
    assert report["parts"] > 3
    assert 0 < report["held"] <= most_entities(1) < 60 * 42
    whole = leadview.run("verify", "--json").ends(1).json
    assert (whole["parts"], whole["held"] > most_entities(1)) == (1, True)
    assert whole["examples"] == report["examples"]


@pytest.mark.apache
def test_what_was_deleted_after_partitions_were_added_is_not_missing(own_kafka: Leadview) -> None:
    """The record in the former partition stays for ever, the tombstone in the new one does not."""
    leadview = own_kafka
    people = [crm.uuid(0xE00 + number) for number in range(6)]
    leadview.publish(crm.organization(), crm.api_key(), *(crm.contact(id=person) for person in people))
    leadview.serve()
    leadview.topics.add_partitions(resources.CONTACT, 3)
    moved = [person for person in people if partition_of(_key(person), 3)]
    deleted = [crm.tombstone(resources.CONTACT, person, seconds=3000) for person in moved]
    leadview.publish(*deleted)
    leadview.wait_until_current()
    wait_until_compacted(leadview, deleted, (1, 2))
    leadview.wait_until_current()
    kept = leadview.documents()
    assert not {entity[2] for entity in kept} & {*moved}
    said = leadview.run("verify").ends(1, f"{len(moved)} only in former partitions", "would come back").output
    assert " 0 missing" in said
    note(leadview, "evicted", "")
    # That partitions were added is a break as well, which lasts: an operator has to delete these people once more.
    ended = "the break has ended"
    wait_until(lambda: "evicted" not in {it.kind for it in leadview.state().breaks}, ended, 2 * PATIENCE_SECONDS)
    assert leadview.documents() == kept, "nobody comes back"


@pytest.mark.apache
def test_added_partitions_end_when_no_record_is_in_a_former_one(leadview: Leadview) -> None:
    """Otherwise an operator ends them, who is told how many there are."""
    publish_all(leadview)
    stray = crm.uuid(0x77)
    leadview.publish(crm.contact(id=stray), partition=(partition_of(_key(stray), 3) + 1) % 3)
    leadview.serve()
    contacts = leadview.topics.name(resources.CONTACT)
    note(leadview, "partitions_raised", leadview.topics.name(resources.LEAD), contacts)
    wait_until(lambda: [it.topic for it in leadview.state().breaks] == [contacts], "that of the leads has ended")
    leadview.run("verify").ends(0, "no difference", f"1 live records of {contacts}")
    wait_until(lambda: has_no_break(leadview), "the operator has ended it")


def _key(contact_id: str) -> bytes:
    return crm.message_key(resources.CONTACT, crm.ORGANIZATION, contact_id)


async def test_comparison_continues_where_another_projector_ended(projection: Projection) -> None:
    control.write(projection.client)
    work = comparison._Work(projection.settings, projection.writing, "documents")
    [generation] = ids(1)
    lost, other = (Break("evicted", "", "", "", when, ()) for when in ("2026-01-01T00:00:00Z", "2026-01-02T00:00:00Z"))
    left = [Part(3, 8), Part(5, 16)]
    assert await work._left([lost], [generation]) is None
    await work._keep(comparison._ComparisonProgress([lost], [generation], left))
    assert await work._left([lost], [generation]) == left
    assert await work._left([lost, other], [generation]) is None, "what was compared before says nothing about it"
    projection.client.set(names.comparison("documents"), b'{"of":"another version"}')
    assert await work._left([lost], [generation]) is None


@pytest.mark.parametrize(
    ("key", "expected"),
    [(b"21", -973932308), (b"foobar", -790332482), (b"a-little-bit-long-string", -985981536), (b"abc", 479470107)],
)
def test_murmur2_is_that_of_the_java_client(key: bytes, expected: int) -> None:
    """Its own test vectors."""
    assert murmur2(key) == expected % 2**32


def test_parts_are_all_organizations() -> None:
    organizations = [crm.uuid(number) for number in range(1000)]
    for parts in (parts_of(100, 100), parts_of(1000, 30), list(Part(1, 2).halves() or ())):
        found = [id_ for part in parts for id_ in organizations if part.has(id_)]
        assert len(found) == len({*found})
        assert found == [id_ for part in parts for id_ in organizations if part.has_key(f"{id_}:{crm.LEAD}".encode())]
        if len(parts) != 2:
            assert len(found) == 1000
    assert [len(parts_of(records, 100)) for records in (0, 100, 101, 1000)] == [1, 1, 2, 10]
