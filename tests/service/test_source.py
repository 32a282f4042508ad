"""What real brokers tell a member of a group, and which of them return its records (`LEADVIEW_KAFKA_CLIENT_RACK`).

The line itself is tested with a scripted Kafka (`test_line.py`).
"""

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from devstack.apache_kafka import ApacheKafka
from devstack.topics import admin
from projector.errors import Unavailable
from projector.kafka import reader as reading
from projector.kafka.reader import Reader, Source, open_reader
from schemas import resources
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.services import Kafka
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.apache

RECORDS = 3


async def nothing() -> None:
    pass


def of_group(kafka: Kafka, topic_prefix: str) -> Source:
    settings = ProjectorSettings(kafka_bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    return Source(settings, [resources.LEAD], f"{topic_prefix}group")


@asynccontextmanager
async def member(
    kafka: Kafka, topic_prefix: str, on_revoked: Callable[[], Awaitable[None]] = nothing
) -> AsyncIterator[Source]:
    """Yields a member to which a partition with some leads is assigned."""
    topics = Topics(kafka, topic_prefix)
    topics.create(1)
    topics.publish(crm.lead(id=crm.uuid(number)) for number in range(RECORDS))
    source = of_group(kafka, topic_prefix)
    await source.start(on_revoked)
    try:
        await eventually(source.assigned, "the partition is assigned")
        yield source
    finally:
        await source.stop()


async def test_what_was_read_before_a_rebalance_is_no_position(kafka: Kafka, topic_prefix: str) -> None:
    """A rebalance gives a partition to the line again before it has sought the position. Both what the group has
    committed and what the line had read, but not applied, are the end of the partition: no marker to be passed."""
    async with member(kafka, topic_prefix) as source:
        [leads] = source.assigned()
        assert source.position(leads) is None
        await source.seek({leads: 0})

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
        assert (source.unpositioned(), source.position(leads)) == ([leads], None)
        assert await source.poll(RECORDS, 0) == {}


async def test_member_finishes_its_batch_before_its_partitions_are_revoked(kafka: Kafka, topic_prefix: str) -> None:
    """`poll` would wait until the group has rebalanced, and so for what the revocation waits for."""
    read: list[int] = []

    async def on_revoked() -> None:
        async with asyncio.timeout(PATIENCE_SECONDS / 2):
            while not read:
                read.extend(len(records) for records in (await source.more(RECORDS, 1.0)).values())

    async with member(kafka, topic_prefix, on_revoked) as source:
        await source.seek(dict.fromkeys(source.assigned(), 0))
        other = of_group(kafka, topic_prefix)
        await other.start()
        try:
            await eventually(lambda: read, "the batch is finished")
            assert read == [RECORDS]
            await eventually(lambda: source.assigned() | other.assigned(), "the partition has an owner")
        finally:
            await other.stop()


async def test_requests_for_records_hold_up_no_other_request(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker answers the requests of a connection one after the other."""
    monkeypatch.setattr(reading, "LINGER_MS", int(2 * PATIENCE_SECONDS * 1000))
    async with member(kafka, topic_prefix) as source:
        at = dict.fromkeys(source.assigned(), RECORDS)
        await source.seek(at)
        assert await source.poll(1, 0.5) == {}  # a request for records is under way now, or is about to be
        assert await source.topic_ids()
        assert await source.seek(at) == at


RACKS = ("zone-a", "zone-b", "zone-c")
RACK_RECORDS = 50
_LOG_REQUESTS = "-Dorg.slf4j.simpleLogger.log.kafka.request.logger=debug"
_ANSWERED = re.compile(r'"clientId":"leadview-projector".*"rackId":"(.*?)".*"recordsSizeInBytes":[1-9]')


async def number_of_records(reader: Reader) -> int:
    ranges = await reader.range(await reader.existing_partitions())
    return sum([len(records) async for records in reader.read(ranges)])


@pytest.mark.long
async def test_the_replica_in_the_same_rack_is_read(tmp_path: Path) -> None:
    """What the brokers log says who has returned records, and for which rack. `tests/unit/test_fetching.py` has what
    happens if the replica fails."""

    def answered(rack: str) -> set[int]:
        logs = ((index, tmp_path / str(index + 1) / "kafka.log") for index in range(len(RACKS)))
        return {index for index, log in logs if rack in _ANSWERED.findall(log.read_text())}

    with ApacheKafka.start(tmp_path, nodes=len(RACKS), racks=RACKS, java_options=[_LOG_REQUESTS]) as brokers:
        topics = Topics(Kafka("apache", brokers.bootstrap_servers, brokers.create_topic), "racks.")
        topics.create(1)
        topics.publish(crm.lead(id=crm.uuid(number)) for number in range(RACK_RECORDS))
        name = topics.name(resources.LEAD)
        leader = admin(brokers.bootstrap_servers).list_topics(name).topics[name].partitions[0].leader - 1
        replica = (leader + 1) % len(RACKS)
        settings = ProjectorSettings(kafka_bootstrap_servers=brokers.bootstrap_servers, topic_prefix=topics.prefix)
        for rack in ("", "zone-z", RACKS[leader]):
            async with open_reader(replace(settings, kafka_client_rack=rack), [resources.LEAD]) as reader:
                assert await number_of_records(reader) == RACK_RECORDS
            await eventually(partial(answered, rack), f"a broker has logged what it returned to {rack}")
            assert answered(rack) == {leader}
        rack = RACKS[replica]
        async with open_reader(replace(settings, kafka_client_rack=rack), [resources.LEAD]) as reader:
            assert await number_of_records(reader) == RACK_RECORDS
            await eventually(partial(answered, rack), "a broker has logged what it returned")
            assert answered(rack) == {replica}
