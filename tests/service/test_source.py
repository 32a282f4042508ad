"""What a member of a group is told by a real Kafka; the line itself is tested with a scripted one (`test_line.py`)."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from projector.errors import Unavailable
from projector.kafka import fetching
from projector.kafka.reader import Source
from schemas import resources
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.services import Kafka
from tests.harness.topics import Topics
from tests.harness.waiting import PATIENCE_SECONDS, eventually

pytestmark = pytest.mark.apache

RECORDS = 3


@asynccontextmanager
async def member(kafka: Kafka, topic_prefix: str) -> AsyncIterator[Source]:
    """Yields a member to which a partition with some leads is assigned."""
    topics = Topics(kafka, topic_prefix)
    topics.create(1)
    topics.publish(crm.lead(id=crm.uuid(number)) for number in range(RECORDS))

    async def on_revoked() -> None:
        pass

    settings = ProjectorSettings(kafka_bootstrap_servers=kafka.bootstrap_servers, topic_prefix=topic_prefix)
    source = Source(settings, [resources.LEAD], f"{topic_prefix}group", on_revoked)
    await source.start()
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
        assert source.unpositioned() == [leads]
        assert source.position(leads) is None
        assert await source.poll(RECORDS, 0) == {}


async def test_requests_for_records_hold_up_no_other_request(
    kafka: Kafka, topic_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker answers the requests of a connection one after the other."""
    monkeypatch.setattr(fetching, "LINGER_MS", int(2 * PATIENCE_SECONDS * 1000))
    async with member(kafka, topic_prefix) as source:
        at = dict.fromkeys(source.assigned(), RECORDS)
        await source.seek(at)
        assert await source.poll(1, 0.5) == {}  # a request for records is under way now, or is about to be
        assert await source.topic_ids()
        assert await source.seek(at) == at
