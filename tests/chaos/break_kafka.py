"""Faults of Kafka: of its brokers, the network to them, and what topics still have. Each begins on entry and ends on
exit.

After some of them, nobody can know that what is served is right (a *break*). Then `status` has to say so, and until its
way out, wrong answers are explained. Where that is an operator's, it is applied if `status` said so, and only then.
"""

import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial as bind
from math import inf
from random import Random

from confluent_kafka import Consumer, ElectionType, KafkaError, Producer, TopicPartition

from devstack.apache_kafka import ApacheKafka
from devstack.fault_proxy import Faults
from projector.reference import Entity
from schemas import names, resources
from tests.chaos.break_redis import redis_emptied
from tests.chaos.core import Change
from tests.chaos.history import Loss, now
from tests.chaos.world import OFTEN, PARTITIONS, REBUILD, RECOVER_SECONDS, World
from tests.harness import crm
from tests.harness.services import Kafka
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

_FORGETFUL, _USUAL = {"delete.retention.ms": "1000"}, {"delete.retention.ms": "86400000"}
_DELETING = {"cleanup.policy": "compact,delete", "retention.ms": "-1"}
_COMPACTING = {"cleanup.policy": "compact"}
_LONGEST_TRANSACTION_MS = 300_000
_ALL = -1
"""As the offset up to which records are deleted."""


@contextmanager
def broker_killed(chosen: Callable[[World, Random], int], world: World, random: Random) -> Iterator[None]:
    """Afterwards, each partition is led by the first of its replicas again, if that one is in sync. Kafka does this by
    itself every five minutes, while no fault is active that would explain what follows from it.
    """
    index = chosen(world, random)
    world.brokers.kill(index)
    yield
    world.brokers.restart(index)
    world.leadview.topics.admin.elect_leaders(ElectionType.PREFERRED).result(PATIENCE_SECONDS)


@contextmanager
def coordinator_paused(world: World, random: Random) -> Iterator[None]:
    index = coordinator(world, random)
    world.brokers.pause(index)
    yield
    world.brokers.resume(index)


def leader(world: World, random: Random) -> int:
    topic = world.leadview.topics.name(random.choice(resources.KINDS))
    found = world.leadview.topics.admin.list_topics(topic, timeout=PATIENCE_SECONDS)
    return int(found.topics[topic].partitions[0].leader) - 1


def coordinator(world: World, random: Random) -> int:
    group = world.leadview.group + random.choice(["", ".access"])
    found = world.leadview.topics.admin.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    assert found.coordinator, f"{group} has no coordinator"
    return int(found.coordinator.id) - 1


@contextmanager
def cut(world: World, random: Random) -> Iterator[None]:
    """Projectors and operators do not reach Kafka, and others do."""
    faults = random.choice((Faults(stalled=True), Faults(refusing=True)))
    for way in world.ways:
        way.faults = faults
        if faults.refusing:
            way.reset_all()
    yield
    for way in world.ways:
        way.faults = Faults()


@contextmanager
def other_cluster(world: World, random: Random) -> Iterator[None]:
    """The projectors are started with the address of another Kafka, and then with the right one again."""
    with (
        world.operating,
        ApacheKafka.start(world.directory / f"kafka-{now():.0f}") as other,
    ):
        kafka = Kafka("apache", other.bootstrap_servers, other.create_topic)
        topics = Topics(kafka, world.leadview.prefix)
        topics.create(PARTITIONS)
        topics.publish(map(world.core.never, resources.KINDS))
        with _without_projectors(world):
            for name in world.metrics_ports:
                world.start_projector(name, kafka_bootstrap_servers=other.bootstrap_servers)
            world.is_told("other_cluster", kafka_bootstrap_servers=other.bootstrap_servers)
            time.sleep(random.uniform(0.0, 3.0))
            for projector in world.projectors.values():
                projector.stop()
        yield
        world.wait_until(lambda: "other_cluster" not in world.problems(), "another cluster is named no more")


@contextmanager
def transaction_open(world: World, random: Random) -> Iterator[None]:
    """A producer leaves a transaction open, while others publish deletes behind it, and then commits or aborts it."""
    kind, commits = random.choice(resources.KINDS), random.random() < 0.5
    topic = world.leadview.topics.name(kind)
    settings = {"bootstrap.servers": world.leadview.kafka.bootstrap_servers, "transactional.id": f"importer-{now()}"}
    importer = Producer({**settings, "transaction.timeout.ms": _LONGEST_TRANSACTION_MS, "log_level": 0})
    importer.init_transactions(PATIENCE_SECONDS)
    with _served(world, kind) as victims:
        importer.begin_transaction()
        with world.publishing:
            if commits:  # what is there already
                for message in map(world.core.newest_of, victims):
                    importer.produce(topic, key=message.key, value=message.value, headers=list(message.headers))
            else:
                never = world.core.never(kind)
                for partition in range(world.partitions[kind]):
                    importer.produce(topic, key=never.key, value=never.value, partition=partition)
            assert importer.flush(PATIENCE_SECONDS) == 0
            world.writer.publish(map(world.core.delete, victims))
        world.is_told("open_transaction")
        yield
    if commits:
        importer.commit_transaction(PATIENCE_SECONDS)
    else:
        importer.abort_transaction(PATIENCE_SECONDS)


@contextmanager
def deletes_missed(world: World, random: Random) -> Iterator[None]:
    """Kafka removes tombstones while no projector runs. Projectors have to put that right by themselves."""
    kind, topics = random.choice(resources.KINDS), world.leadview.topics
    remember = bind(topics.alter, "topic", topics.name(kind), _USUAL)
    with world.operating, _served(world, kind) as victims:
        began_at = now()
        topics.alter("topic", topics.name(kind), _FORGETFUL)
        with _without_projectors(world):
            world.writer.publish(map(world.core.tombstone, victims))
            _compact(world, kind, victims, _are_forgotten)
        world.judge("deletes_missed", began_at, remember)
        remember()
    yield


@contextmanager
def records_missed(world: World, random: Random) -> Iterator[None]:
    """Kafka deletes all records of a topic, among them some that were published while no projector ran."""
    kind, topics = random.choice(resources.KINDS), world.leadview.topics
    with world.operating, _served(world, kind) as victims:
        world.drop_all()
        began_at = now()
        with world.publishing:
            world.catch_up()
            with _without_projectors(world):
                world.writer.publish(map(world.core.delete, victims))
                topics.alter("topic", topics.name(kind), _DELETING)
                topics.delete_records(
                    [TopicPartition(topics.name(kind), number, _ALL) for number in range(world.partitions[kind])]
                )
                topics.alter("topic", topics.name(kind), _COMPACTING)
                _fill(world, kind)  # a position reaches the end only with a record
        world.judge("records_missed", began_at, bind(_publish_again, world, kind))
    yield


@contextmanager
def published_late(world: World, random: Random) -> Iterator[None]:
    """Older versions are published behind newer ones, and compaction leaves nothing else. Then Redis is emptied."""
    kind = random.choice(resources.KINDS)
    with world.operating, _served(world, kind) as victims:
        older = [Change(world.core.newest_of(victim), None) for victim in victims]
        began_at = now()
        world.writer.publish(map(world.core.delete, victims))
        world.writer.publish(older)
        _compact(world, kind, victims, _are_alone)
        world.judge("older_published", began_at, lambda: world.writer.publish(map(world.core.delete, victims)))
        with redis_emptied(world, random):
            pass
    yield


@contextmanager
def partitions_raised(world: World, random: Random) -> Iterator[None]:
    """A topic gets one more partition. Tombstones that are published there vanish, and what they deleted stays in the
    former partitions for ever. Then Redis is emptied. The way out is a new topic.
    """
    kind, topics = random.choice(resources.KINDS), world.leadview.topics
    with world.operating, _served(world, kind) as victims:
        world.drop_all()
        began_at = now()
        with world.publishing:
            world.partitions[kind] += 1
            topics.add_partitions(kind, world.partitions[kind])
        yield
        # Before the tombstones: for how long the cleaner keeps them is settled when it meets them first.
        topics.alter("topic", topics.name(kind), _FORGETFUL)
        world.writer.publish(map(world.core.tombstone, victims))
        world.catch_up()
        _compact(world, kind, victims, _are_forgotten)
        topics.alter("topic", topics.name(kind), _USUAL)
        with redis_emptied(world, random):
            pass
        world.judge("partitions_raised", began_at, bind(_recreate, world, kind))


@contextmanager
def topic_recreated(world: World, random: Random) -> Iterator[None]:
    """Offsets begin at 0 again. The core product publishes everything once more, and the operator rebuilds."""
    with world.operating:
        world.drop_all()
        began_at = now()
        _recreate(world, random.choice(resources.KINDS))
        world.history.losses.append(Loss(began_at, now(), -inf))
    yield


# What these have in common.


def _recreate(world: World, kind: resources.Kind) -> None:
    with world.publishing:
        world.catch_up()
        world.leadview.topics.recreate(kind, PARTITIONS)
        world.compact_soon(kind)
        _publish_again(world, kind)


def _publish_again(world: World, kind: resources.Kind) -> None:
    """Publish all of a kind once more, rebuild, and verify that what is served is right."""
    with world.publishing:
        others = (other for other in world.others.values() if other.kind is kind)
        world.leadview.topics.publish([*world.core.again(kind), *others])
        if kind is resources.LEAD:  # dead letters with offsets that Kafka no longer has
            world.leadview.redis.delete(names.DEAD_LETTERS)
            world.leadview.topics.bad_keys.clear()
        world.wait_until(lambda: world.leadview.caught_up(kind), "it is read")
        world.command(*world.accepting)
    # Records that retention removed would be missing: they are there again.
    for words in ((*REBUILD, "--force"), ("promote", "--force"), ("drop",), ("verify", "--access")):
        done = world.command(*words)
        assert done.status == 0, f"{words}: {done.output}"


@contextmanager
def _without_projectors(world: World) -> Iterator[None]:
    for projector in world.projectors.values():
        projector.stop()
    yield
    for name in world.metrics_ports:
        world.start_projector(name)


@contextmanager
def _served(world: World, kind: resources.Kind) -> Iterator[list[Entity]]:
    """Some entities of a kind that may be deleted. They are served, and the core product leaves them alone."""
    with world.core.at_rest(kind) as victims:
        world.writer.publish(map(world.core.put, victims))
        world.catch_up()
        yield victims


Records = list[tuple[bytes, bytes | None]]


def _are_forgotten(records: Records, keys: Collection[bytes]) -> bool:
    """Are the tombstones of these message keys gone?"""
    return all(value is not None for key, value in records if key in keys)


def _are_alone(records: Records, keys: Collection[bytes]) -> bool:
    """Is there at most one record of each of these message keys?"""
    counts = Counter(key for key, _ in records)
    return all(counts[key] <= 1 for key in keys)


def _compact(
    world: World,
    kind: resources.Kind,
    victims: Collection[Entity],
    is_done: Callable[[Records, Collection[bytes]], bool],
) -> None:
    """Wait until compaction has gone so far with the records of these entities. A segment is compacted when it is
    closed, and it is closed when a record comes after its time; tombstones go the second time.
    """
    topics, keys = world.leadview.topics, {crm.message_key(*victim) for victim in victims}
    for node in topics.admin.list_topics(timeout=PATIENCE_SECONDS).brokers:
        topics.alter("broker", str(node), OFTEN)

    def has_gone_so_far() -> bool:
        _fill(world, kind)
        return is_done(_records(world, kind), keys)

    wait_until(has_gone_so_far, f"{topics.name(kind)} is compacted", RECOVER_SECONDS, interval=1.0)


def _fill(world: World, kind: resources.Kind) -> None:
    """Publish something to each partition of a topic: a tombstone of what never was."""
    with world.publishing:
        for partition in range(world.partitions[kind]):
            unknown = crm.uuid(0xF100 + partition)
            world.leadview.publish(world.core.much_later((kind, unknown, unknown)), partition=partition)


def _records(world: World, kind: resources.Kind) -> Records:
    """Returns key and value of all records of a topic."""
    settings = {"bootstrap.servers": world.leadview.kafka.bootstrap_servers, "group.id": "nemesis", "log_level": 0}
    consumer, records = Consumer({**settings, "enable.partition.eof": True}), list[tuple[bytes, bytes | None]]()
    partitions = range(world.partitions[kind])
    try:
        consumer.assign([TopicPartition(world.leadview.topics.name(kind), number, 0) for number in partitions])
        ended = set[int | None]()
        while len(ended) < len(partitions):
            message = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{kind.topic} cannot be read"
            error = message.error()
            if error is None:
                records.append((message.key() or b"", message.value()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
    finally:
        consumer.close()
    return records
