"""What the embedded Kafka of `make run` does not do as Apache Kafka does it: its banner and docs/events.md say so."""

import asyncio
from collections.abc import Callable

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException, Producer

from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS


def with_librdkafka(servers: str) -> None:
    producer = Producer({"bootstrap.servers": servers, "transactional.id": "t", "log_level": 0})
    producer.init_transactions(PATIENCE_SECONDS)


def with_aiokafka(servers: str) -> None:
    async def begin() -> None:
        producer = AIOKafkaProducer(bootstrap_servers=servers, transactional_id="t")
        try:
            await producer.start()
        finally:
            await producer.stop()

    asyncio.run(begin())


@pytest.mark.parametrize(
    ("begin", "refused", "because"),
    [
        pytest.param(with_librdkafka, KafkaException, "_UNSUPPORTED_FEATURE", id="librdkafka"),
        pytest.param(with_aiokafka, KafkaError, "IncompatibleBrokerVersion", id="aiokafka"),
    ],
)
def test_transactions_are_refused_because_aborted_records_would_be_served(
    embedded_kafka: Kafka, begin: Callable[[str], None], refused: type[Exception], because: str
) -> None:
    with pytest.raises(refused, match=because):
        begin(embedded_kafka.bootstrap_servers)


def test_topic_that_is_published_to_is_created(embedded_kafka: Kafka, topic_prefix: str) -> None:
    acknowledged = []
    producer = Producer({"bootstrap.servers": embedded_kafka.bootstrap_servers})
    producer.produce(f"{topic_prefix}lead", b"{}", on_delivery=lambda error, _: acknowledged.append(error is None))
    producer.flush(PATIENCE_SECONDS)
    assert acknowledged == [True], "it is not: remove what is said about it"
