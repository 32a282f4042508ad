"""The topics of one Leadview on a real Kafka, and a producer that publishes to them as the core product does.

Everything that is published goes to the pure reference as well, with the coordinates that Kafka gave it.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial as bind
from threading import Event
from typing import Any, Literal
from uuid import uuid4

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as Delivered
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewPartitions

from devstack.threads import in_thread
from devstack.topics import admin
from projector.record import Partition, Record
from projector.reference import Reference
from schemas import resources
from tests.harness.crm import Message, at_ms
from tests.harness.services import Kafka
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

_END = OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Topics:
    """The topics whose names begin with `prefix`."""

    def __init__(self, kafka: Kafka, prefix: str) -> None:
        self.kafka = kafka
        self.prefix = prefix
        self.admin = admin(kafka.bootstrap_servers)
        self.reference = _Reference()
        self.bad_keys: set[bytes] = set()
        """Message keys of records that are known to be bad. The reference is not asked about them: it reads as the
        projector does, and may need as long."""
        self.end_offsets: dict[tuple[str, int], int] = {}
        """Of each partition to which something was published."""
        self._producer = self._new_producer()

    def name(self, kind: resources.Kind) -> str:
        return f"{self.prefix}{kind.topic}"

    def create(self, partitions: int = 3) -> None:
        """Create the topics of all kinds. Returns when each partition has a leader."""
        for kind in resources.KINDS:
            self.kafka.create_topic(self.name(kind), partitions)
        created = [TopicPartition(self.name(kind), number) for kind in resources.KINDS for number in range(partitions)]
        wait_until(lambda: self._have_leaders(created), "every partition has a leader")

    def recreate(self, kind: resources.Kind, partitions: int) -> None:
        """Delete the topic of a kind and create it, empty. What was published to it is forgotten."""
        topic = self.name(kind)
        self._producer = self._new_producer()  # the former one knows the former topic
        self.admin.delete_topics([topic])[topic].result(PATIENCE_SECONDS)
        wait_until(lambda: topic not in self.admin.list_topics(timeout=PATIENCE_SECONDS).topics, f"{topic} is gone")
        self.kafka.create_topic(topic, partitions)
        self.end_offsets = {at: end for at, end in self.end_offsets.items() if at[0] != topic}
        self.reference.forget(kind)

    def add_partitions(self, kind: resources.Kind, number: int) -> None:
        """Raise the number of partitions of a topic to `number`."""
        topic = self.name(kind)
        self.admin.create_partitions([NewPartitions(topic, number)])[topic].result(PATIENCE_SECONDS)
        # The former ones do not know the new partitions yet.
        self._producer, self.admin = self._new_producer(), admin(self.kafka.bootstrap_servers)

        def are_known() -> bool:
            found = self._producer.list_topics(topic, timeout=PATIENCE_SECONDS).topics[topic]
            return len(found.partitions) == number

        wait_until(are_known, "the new partitions are known")  # the brokers learn of them one after the other

    @contextmanager
    def consumed(self, kind: resources.Kind, group: str) -> Iterator[None]:
        """Let somebody with a console consumer be a member of a group until the block ends."""
        names = {"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": group, "client.id": "console-consumer"}
        consumer = Consumer(names | {"log_level": 0})

        def consume(stop: Event) -> None:
            consumer.subscribe([self.name(kind)])
            while not stop.is_set():
                consumer.poll(0.1)

        with closing(consumer), in_thread(consume):
            yield

    def alter(self, kind: Literal["topic", "broker"], name: str, values: Mapping[str, str]) -> None:
        """Set these options of a topic or a broker."""
        entries = [
            ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()
        ]
        resource = ConfigResource(kind, name, incremental_configs=entries)
        self.admin.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)

    def delete_records(self, before: list[TopicPartition]) -> None:
        """Delete the records before these offsets. A broker refuses it until it knows that the policy of the topic was
        altered a moment ago.
        """
        refusals: list[BaseException] = []

        def are_deleted() -> bool:
            # All of them: librdkafka aborts if a client is closed while it waits for an answer.
            errors = [deleted.exception(PATIENCE_SECONDS) for deleted in self.admin.delete_records(before).values()]
            refusals[:] = filter(None, errors)
            if any(error.args[0].code() != KafkaError.POLICY_VIOLATION for error in refusals):
                self._forget_answers()
            return not refusals

        wait_until(are_deleted, lambda: f"the records are deleted: {refusals}", interval=0.2)

    def publish(self, messages: Iterable[Message], partition: int | None = None) -> list[Record]:
        """Publish these messages, to one partition or to those of their keys. Returns the records when Kafka has them,
        in the order in which Kafka confirmed them."""
        records: list[Record] = []
        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        for message in messages:
            self._producer.produce(
                self.name(message.kind),
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                timestamp=at_ms(message.seconds),
                on_delivery=bind(self._on_delivery, records, message),
                **place,
            )
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0
        return records

    def begin_transaction(
        self, *messages: Message, partition: int | None = None, seconds: float | None = None
    ) -> Producer:
        """Publish these messages in a transaction, which the caller commits or aborts. `seconds` is the time of all of
        these records, as in `crm`; None: now.
        """
        settings = {"transactional.id": str(uuid4()), "transaction.timeout.ms": 600_000}
        producer = Producer({"bootstrap.servers": self.kafka.bootstrap_servers, "log_level": 0, **settings})
        producer.init_transactions(PATIENCE_SECONDS)
        producer.begin_transaction()
        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        if seconds is not None:
            place["timestamp"] = at_ms(seconds)
        for message in messages:
            producer.produce(self.name(message.kind), key=message.key, value=message.value, **place)
        assert producer.flush(PATIENCE_SECONDS) == 0
        return producer

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Returns the offsets that Kafka has stored for a consumer group."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": group, "log_level": 0})
        try:
            found = consumer.committed([TopicPartition(*at) for at in self.end_offsets], timeout=PATIENCE_SECONDS)
        finally:
            consumer.close()
        return {Partition(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def _have_leaders(self, partitions: list[TopicPartition]) -> bool:
        try:
            for found in self.admin.list_offsets(dict.fromkeys(partitions, _END)).values():
                found.result(PATIENCE_SECONDS)
        except KafkaException:  # the brokers learn about a new topic one after the other
            self._forget_answers()
            return False
        return True

    def _forget_answers(self) -> None:
        """Ask with a new client: librdkafka sometimes keeps the answer "unknown topic" for as long as it is asked, and
        asks the former leader of a partition to delete records.
        """
        self.admin = admin(self.kafka.bootstrap_servers)

    def _on_delivery(self, records: list[Record], message: Message, error: KafkaError | None, at: Delivered) -> None:
        assert error is None, error
        topic, partition, offset = at.topic(), at.partition(), at.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self.end_offsets[Partition(topic, partition)] = offset + 1
        key, value, headers = message.key, message.value, message.headers
        record = Record(topic, partition, offset, at.timestamp()[1], key, value, headers, message.kind)
        records.append(record)
        if key not in self.bad_keys:
            self.reference.add(record)

    def _new_producer(self) -> Producer:
        return Producer(
            {
                "bootstrap.servers": self.kafka.bootstrap_servers,
                "partitioner": "murmur2_random",
                "enable.idempotence": True,
                "linger.ms": 2,
                "log_level": 0,
            }
        )


def records(kafka: Kafka, topic: str, count: int) -> list[Record]:
    """Returns the first records of a topic of leads. Waits until they are there."""
    found: list[Record] = []
    settings = {"bootstrap.servers": kafka.bootstrap_servers, "group.id": topic, "auto.offset.reset": "earliest"}
    consumer = Consumer({**settings, "log_level": 0})
    try:
        consumer.subscribe([topic])
        while len(found) < count:
            message: Any = consumer.poll(PATIENCE_SECONDS)
            assert message is not None, f"{topic} has {len(found)} records"
            assert message.error() is None, message.error()
            at = (topic, message.partition(), message.offset(), message.timestamp()[1])
            found.append(Record(*at, message.key(), message.value(), tuple(message.headers() or ()), resources.LEAD))
    finally:
        consumer.close()
    return found


class _Reference(Reference):
    def forget(self, kind: resources.Kind) -> None:
        """Forget all records of this kind, as if they had never been published."""
        self._newest = {entity: newest for entity, newest in self._newest.items() if entity[0] is not kind}
