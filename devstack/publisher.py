"""Sends sample messages to a Kafka cluster."""

import time
from collections.abc import Iterable
from threading import Event

from confluent_kafka import KafkaError, KafkaException, Producer
from confluent_kafka import Message as Delivered
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from devstack.failure import StackFailed
from devstack.sample import Crm, Message
from schemas.resources import BY_TOPIC
from schemas.settings import ProjectorSettings

PARTITIONS = 6
_REACH_SECONDS = 10.0
_FLUSH_SECONDS = 30.0
_QUEUE_FULL_SECONDS = 0.05


def connection(settings: ProjectorSettings) -> dict[str, str | int | float | bool]:
    """Returns the options with which librdkafka connects, from the projector's settings."""
    options: dict[str, str | None] = {
        "bootstrap.servers": settings.kafka_bootstrap_servers,
        "security.protocol": settings.kafka_security_protocol,
        "log_level": "0",
    }
    if "SSL" in settings.kafka_security_protocol:
        options |= {
            "ssl.ca.location": settings.kafka_ssl_ca_file,
            "ssl.certificate.location": settings.kafka_ssl_cert_file,
            "ssl.key.location": settings.kafka_ssl_key_file,
        }
    if "SASL" in settings.kafka_security_protocol:
        options |= {
            "sasl.mechanism": settings.kafka_sasl_mechanism,
            "sasl.username": settings.kafka_sasl_username,
            "sasl.password": settings.kafka_sasl_password,
        }
    return {name: value for name, value in options.items() if value is not None}


def create_missing_topics(settings: ProjectorSettings) -> list[str]:
    """Create the topics that do not exist, with compaction. Returns the created topics. Raises StackFailed."""
    client = AdminClient(connection(settings))
    try:
        existing = client.list_topics(timeout=_REACH_SECONDS).topics
        missing = [settings.topic_prefix + topic for topic in BY_TOPIC if settings.topic_prefix + topic not in existing]
        new = [NewTopic(name, PARTITIONS, config={"cleanup.policy": "compact"}) for name in missing]
        for created in client.create_topics(new).values() if new else ():
            created.result(_FLUSH_SECONDS)
    except KafkaException as exception:
        reason = exception.args[0]
        if reason.code() == KafkaError.TOPIC_ALREADY_EXISTS:  # another process created it first
            return []
        raise StackFailed(f"Kafka at {settings.kafka_bootstrap_servers} failed: {reason.str()}") from exception
    return missing


class Publisher:
    """A producer for the topics with the prefix. All records of a key go to one partition, as with kcat."""

    def __init__(self, settings: ProjectorSettings) -> None:
        self._prefix = settings.topic_prefix
        self._producer = Producer(connection(settings) | {"enable.idempotence": True, "linger.ms": 5})
        self._failure: str | None = None
        self.delivered = 0

    def publish(self, messages: Iterable[Message]) -> None:
        """Send all messages and wait until Kafka has acknowledged them. Raises StackFailed."""
        for message in messages:
            self._send(message)
        if self._producer.flush(_FLUSH_SECONDS):
            raise StackFailed(f"Kafka did not acknowledge the sample data within {_FLUSH_SECONDS:g} s")
        self.check()

    def keep_publishing(self, crm: Crm, rate: float, stop: Event) -> None:
        """Send `rate` changes per second until `stop` is set. `check` raises the failures."""
        if rate == 0:
            return
        changes = crm.changes()
        due = time.monotonic() + 1 / rate
        while not stop.wait(max(0.0, due - time.monotonic())):
            self._send(next(changes))  # created only now, because it contains the present time
            due += 1 / rate
        self._producer.flush(1.0)

    def check(self) -> None:
        """Raises StackFailed if Kafka rejected a record."""
        if self._failure:
            raise StackFailed(f"Kafka rejected a sample record: {self._failure}")

    def _send(self, message: Message) -> None:
        while True:
            try:
                self._producer.produce(
                    self._prefix + message.topic, message.value, message.key, on_delivery=self._on_delivery
                )
            except BufferError:  # the queue is full
                self._producer.poll(_QUEUE_FULL_SECONDS)
            else:
                break
        self._producer.poll(0)

    def _on_delivery(self, error: KafkaError | None, _message: Delivered) -> None:
        if error is None:
            self.delivered += 1
        else:
            self._failure = error.str()
