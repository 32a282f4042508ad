"""The positions of a line while the group rebalances, and their copy in Kafka."""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from aiokafka import TopicPartition
from confluent_kafka import ConsumerGroupTopicPartitions, KafkaException

from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.ports import free_port
from devstack.topics import admin
from projector.errors import Unavailable
from projector.kafka.reader import Source
from projector.ledger import copies
from projector.ledger.control import NOTHING_STORED, Position, Step
from projector.ledger.ledger import Ledger
from projector.ledger.writers import Sessions
from projector.line.line import Line
from projector.line.pace import Pacer
from projector.line.positions import Positions
from projector.record import Partition
from projector.redis.store import Store
from projector.stop import Stop
from schemas import resources
from schemas.settings import ProjectorSettings
from tests.harness import control, crm
from tests.harness.crm import Message
from tests.harness.leadview import Leadview
from tests.harness.metrics_port import ask, metric
from tests.harness.projection import Opened
from tests.harness.services import Kafka, RedisService
from tests.harness.topics import Topics
from tests.harness.waiting import eventually, wait_until

pytestmark = pytest.mark.apache

RECORDS = 3
_ASK_SECONDS = 5.0


@pytest.fixture
def broker(apache_jars: Path, tmp_path: Path) -> Iterator[ApacheKafka]:
    """A Kafka of its own, because it is killed."""
    with ApacheKafka.start(tmp_path / "kafka") as kafka:
        yield kafka


async def test_a_commit_that_failed_is_repeated(
    broker: ApacheKafka, redis_server: RedisService, caplog: pytest.LogCaptureFixture
) -> None:
    """No record comes after it, so nothing else would tell Kafka the position."""
    topics = Topics(Kafka("apache", broker.bootstrap_servers, broker.create_topic), "commit.")
    topics.create(1)
    topics.publish(crm.lead(id=crm.uuid(number)) for number in range(RECORDS))
    leads = Partition(topics.name(resources.LEAD), 0)
    settings = ProjectorSettings(
        kafka_bootstrap_servers=broker.bootstrap_servers, redis_url=redis_server.url, topic_prefix="commit."
    )
    store = Store(settings)
    opened = await Opened.open(store)

    async def on_revoked() -> None:
        pass

    source = Source(settings, [resources.LEAD], "commit.group", on_revoked)
    positions = Positions("documents", source, opened.ledger)
    await source.start()
    try:
        await eventually(lambda: leads in source.assigned(), "the partition is assigned")
        await positions.seek()
        await positions.cover({leads: Step(NOTHING_STORED, Position(RECORDS, 0, 0))})
        broker.kill(0)
        with caplog.at_level(logging.WARNING):
            await positions.commit()
        assert "offsets not committed to Kafka" in caplog.text
        broker.restart(0)

        async def committed() -> bool:
            await positions.commit()
            return _committed(broker, "commit.group") == {leads: RECORDS}

        await eventually(committed, "the position is committed")
    finally:
        positions.end()
        await source.stop()
        await store.close()


async def test_what_the_group_committed_is_not_passed_until_the_partition_was_sought(
    kafka: Kafka, redis_server: RedisService
) -> None:
    """Redis was emptied, and a rebalance gives the partition to the line before it has sought the position again. Both
    what the group has committed and what the line had read, but not applied, are the end of the partition: that is not
    a marker to be passed."""
    topics = Topics(kafka, f"passed-{uuid4().hex}.")
    topics.create(1)
    topics.publish(crm.lead(id=crm.uuid(number)) for number in range(RECORDS))
    leads = Partition(topics.name(resources.LEAD), 0)
    settings = ProjectorSettings(
        kafka_bootstrap_servers=kafka.bootstrap_servers, redis_url=redis_server.url, topic_prefix=topics.prefix
    )
    store = Store(settings)
    opened = await Opened.open(store)

    async def on_revoked() -> None:
        pass

    source = Source(settings, [resources.LEAD], topics.prefix, on_revoked)
    positions = Positions("documents", source, opened.ledger)
    await source.start()
    try:
        await eventually(lambda: leads in source.assigned(), "the partition is assigned")
        await positions.seek()

        async def read() -> bool:
            await source.poll(RECORDS, 1.0)
            return source.position(leads) == RECORDS

        await eventually(read, "the records are read")
        await source.commit({leads: RECORDS})
        source.leave()
        with pytest.raises(Unavailable, match="revoked before"):
            await source.seek({leads: RECORDS})
        source.join()
        await eventually(lambda: leads in source.assigned(), "the partition is assigned again")
        assert positions.offsets == {leads: NOTHING_STORED}
        assert source.unpositioned() == [leads]
        assert source.position(leads) is None
        assert await positions.pass_markers({leads: RECORDS}) is None

        await positions.seek()
        assert source.position(leads) == 0
    finally:
        positions.end()
        await source.stop()
        await store.close()


async def test_a_session_under_another_record_positions_all_partitions_again(
    kafka: Kafka, redis_server: RedisService, topic_prefix: str
) -> None:
    """Kafka has assigned one partition more, and Redis was emptied meanwhile: what was read of the others is gone."""
    topics = Topics(kafka, topic_prefix)
    topics.create(2)
    topics.publish([crm.lead(id=crm.uuid(number)) for number in range(RECORDS)], partition=0)
    known, more = (Partition(topics.name(resources.LEAD), number) for number in range(2))
    settings = ProjectorSettings(
        kafka_bootstrap_servers=kafka.bootstrap_servers, redis_url=redis_server.url, topic_prefix=topic_prefix
    )
    store = Store(settings)
    opened = await Opened.open(store)

    async def on_revoked() -> None:
        pass

    source = Source(settings, [resources.LEAD], f"{topic_prefix}group", on_revoked)
    positions = Positions("documents", source, opened.ledger)
    await source.start()
    try:
        await eventually(lambda: source.assigned() == {known, more}, "both partitions are assigned")
        await positions.seek()

        async def read() -> bool:
            await source.poll(RECORDS, 1.0)
            return source.position(known) == RECORDS

        await eventually(read, "the records are read")
        await positions.cover({known: Step(NOTHING_STORED, Position(RECORDS, 0, 0))})
        assert positions.offsets[known] == RECORDS
        with redis_server.client() as client:
            client.flushdb()
        await copies.current(store)
        source.reset([more])
        await positions.seek()
        assert positions.offsets == {known: NOTHING_STORED, more: NOTHING_STORED}
        assert source.position(known) == 0
    finally:
        positions.end()
        await source.stop()
        await store.close()


class RevokingOnce(Pacer):
    """In the middle of the first batch, Kafka revokes all partitions of the line."""

    def __init__(self, revoke: Callable[[], Awaitable[None]]) -> None:
        super().__init__()
        self._revoke = revoke
        self.revoking: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        if self.revoking is None:
            self.revoking = asyncio.create_task(self._revoke())  # type: ignore[arg-type]
            await asyncio.sleep(0)


async def test_a_revocation_waits_until_the_batch_is_covered(
    kafka: Kafka, redis_server: RedisService, topic_prefix: str
) -> None:
    """Otherwise the next owner would begin before it, while its writes are still under way."""
    topics = Topics(kafka, topic_prefix)
    topics.create(1)
    topics.publish(crm.lead(id=crm.uuid(number)) for number in range(RECORDS))
    leads = Partition(topics.name(resources.LEAD), 0)
    settings = ProjectorSettings(
        kafka_bootstrap_servers=kafka.bootstrap_servers, redis_url=redis_server.url, topic_prefix=topic_prefix
    )
    store, stop = Store(settings), Stop()
    covered: list[Position | None] = []

    async def revoke() -> None:
        await line._source.on_partitions_revoked([TopicPartition(*leads)])
        copy = control.read(client)
        covered.append(copy.positions.get(leads) if copy else None)
        stop.set()

    await copies.current(store)
    ledger, pacer = Ledger(store, Sessions(store)), RevokingOnce(revoke)
    line = Line("documents", settings, [resources.LEAD], f"{topic_prefix}group", store, ledger, pacer)
    try:
        with redis_server.client() as client:
            await line.run(stop)
    finally:
        await store.close()
    [position] = covered
    assert position
    assert position.offset == RECORDS


@pytest.mark.long
def test_a_partition_of_another_projector_is_not_behind(leadview: Leadview) -> None:
    """A rebalance waits for a projector that stands still. Meanwhile another one still believes that it has both of its
    partitions, and seeks there again; afterwards it has one."""
    ports = [free_port() for _ in range(3)]
    settings: dict[str, Any] = {"kafka_session_timeout": 60}
    projectors = [leadview.start("run", metrics_port=port, **settings) for port in ports[:2]]
    leadview.publish_all(_leads())
    leadview.wait_until_served()
    wait_until(lambda: sorted(_partition_counts(ports[:2])) == [1, 2], "two projectors share the partitions")
    slow, other = sorted(projectors, key=dict(zip(projectors, _partition_counts(ports[:2]), strict=True)).__getitem__)
    slow.pause()
    before = _resumed(other)
    leadview.start("run", metrics_port=ports[2], **settings)
    wait_until(lambda: _resumed(other) > before, "the other one seeks again, during the rebalance")
    slow.resume()
    wait_until(lambda: _partition_counts(ports) == [1, 1, 1], "three projectors share the partitions")
    leadview.publish_all(_leads())
    leadview.wait_until_current()
    for port in ports:
        wait_until(partial(_is_not_behind, port), "it is not behind")
        assert ask(port, "/healthz")[0] == 200


def _leads() -> list[Message]:
    return [crm.lead(id=crm.uuid(number)) for number in range(40)]


def _partition_counts(ports: Sequence[int]) -> list[int]:
    """Returns how many partitions with leads each projector says that it has."""
    metrics = (ask(port, "/metrics")[1] or "" for port in ports)
    counted = (
        re.search(r"^leadview_projector_partitions{[^}]*\.leads\"} (\d+)", text, re.MULTILINE) for text in metrics
    )
    return [int(found[1]) if found else 0 for found in counted]


def _is_not_behind(port: int) -> bool:
    return metric(port, "leadview_projector_lag_records") == 0


def _resumed(projector: Child) -> int:
    """Returns how often the line of the documents has sought its partitions."""
    lines = projector.log.read_text().splitlines()
    return sum("resumed at these offsets" in line and ".leads" in line for line in lines)


def _committed(broker: ApacheKafka, group: str) -> dict[Partition, int]:
    """Returns the positions that Kafka has; nothing while the broker is not ready yet."""
    asked = ConsumerGroupTopicPartitions(group)
    client = admin(broker.bootstrap_servers)
    try:
        found = client.list_consumer_group_offsets([asked], request_timeout=_ASK_SECONDS)[group].result()
    except KafkaException:
        return {}
    return {Partition(at.topic, at.partition): at.offset for at in found.topic_partitions}
