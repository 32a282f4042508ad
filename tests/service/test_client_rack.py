"""`LEADVIEW_KAFKA_CLIENT_RACK`, on brokers with racks: records are fetched from the replica in the projector's own."""

import re
from functools import partial
from pathlib import Path

import pytest
from msgspec.structs import replace

from devstack.apache_kafka import ApacheKafka
from devstack.topics import admin
from projector.kafka.reader import Reader, open_reader
from schemas import resources
from schemas.settings import ProjectorSettings
from tests.harness import crm
from tests.harness.services import Kafka
from tests.harness.topics import Topics
from tests.harness.waiting import eventually

RACKS = ("zone-a", "zone-b", "zone-c")
RECORDS = 50
_LOG_REQUESTS = "-Dorg.slf4j.simpleLogger.log.kafka.request.logger=debug"
_ANSWERED = re.compile(r'"clientId":"leadview-projector".*"rackId":"(.*?)".*"recordsSizeInBytes":[1-9]')


async def number_of_records(reader: Reader) -> int:
    ranges = await reader.range(await reader.existing_partitions())
    return sum([len(records) async for records in reader.read(ranges)])


@pytest.mark.long
async def test_the_replica_in_the_same_rack_is_read_and_the_leader_without_it(
    apache_jars: Path, tmp_path: Path
) -> None:
    """What the brokers log says who has returned records, and for which rack."""

    def answered(rack: str) -> set[int]:
        logs = ((index, tmp_path / str(index + 1) / "kafka.log") for index in range(len(RACKS)))
        return {index for index, log in logs if rack in _ANSWERED.findall(log.read_text())}

    with ApacheKafka.start(tmp_path, nodes=len(RACKS), racks=RACKS, java_options=[_LOG_REQUESTS]) as brokers:
        topics = Topics(Kafka("apache", brokers.bootstrap_servers, brokers.create_topic), "racks.")
        topics.create(1)
        topics.publish(crm.lead(id=crm.uuid(number)) for number in range(RECORDS))
        name = topics.name(resources.LEAD)
        leader = admin(brokers.bootstrap_servers).list_topics(name).topics[name].partitions[0].leader - 1
        replica = (leader + 1) % len(RACKS)
        settings = ProjectorSettings(kafka_bootstrap_servers=brokers.bootstrap_servers, topic_prefix=topics.prefix)
        for rack in ("", "zone-z", RACKS[leader]):
            async with open_reader(replace(settings, kafka_client_rack=rack), [resources.LEAD]) as reader:
                assert await number_of_records(reader) == RECORDS
            await eventually(partial(answered, rack), f"a broker has logged what it returned to {rack}")
            assert answered(rack) == {leader}
        rack = RACKS[replica]
        async with open_reader(replace(settings, kafka_client_rack=rack), [resources.LEAD]) as reader:
            assert await number_of_records(reader) == RECORDS
            await eventually(partial(answered, rack), "a broker has logged what it returned")
            assert answered(rack) == {replica}
            brokers.kill(replica)
            topics.publish(crm.lead(id=crm.uuid(RECORDS + number)) for number in range(RECORDS))
            assert await number_of_records(reader) == 2 * RECORDS
            await eventually(lambda: leader in answered(rack), "the leader has logged what it returned")
