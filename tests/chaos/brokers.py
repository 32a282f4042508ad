"""What a chaos run asks of Kafka: who leads, who coordinates, and compaction that does not take its time."""

from typing import Any

from confluent_kafka import ElectionType, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource

from devstack.topics import admin
from tests.harness.waiting import PATIENCE_SECONDS

# A segment is compacted when it is closed, and it is closed when a record comes after its time.
_SOON = {"segment.ms": "1000", "min.cleanable.dirty.ratio": "0.01", "max.compaction.lag.ms": "1000"}


def compact_soon(bootstrap_servers: str, topic: str) -> None:
    """Let the cleaner take what is older than a second, whenever it looks."""
    _alter(admin(bootstrap_servers), ConfigResource.Type.TOPIC, topic, _SOON)


def compact_often(bootstrap_servers: str) -> None:
    """Let the cleaners of all brokers look twice a second."""
    client = admin(bootstrap_servers)
    for node in client.list_topics(timeout=PATIENCE_SECONDS).brokers:
        _alter(client, ConfigResource.Type.BROKER, str(node), {"log.cleaner.backoff.ms": "500"})


def leader(bootstrap_servers: str, topic: str) -> int:
    """The node that leads the topic's first partition."""
    found = admin(bootstrap_servers).list_topics(topic, timeout=PATIENCE_SECONDS)
    return int(found.topics[topic].partitions[0].leader)


def coordinator(bootstrap_servers: str, group: str) -> int:
    """The node that coordinates a consumer group."""
    client = admin(bootstrap_servers)
    found = client.describe_consumer_groups([group])[group].result(PATIENCE_SECONDS)
    if found.coordinator is None:
        raise KafkaException(f"{group} has no coordinator")
    return int(found.coordinator.id)


def elect_preferred_leaders(bootstrap_servers: str) -> None:
    """Let each partition be led by the first of its replicas again, if that one is in sync. Kafka does this by itself
    every five minutes, while no fault is active that would explain what follows from it."""
    client = admin(bootstrap_servers)
    client.elect_leaders(ElectionType.PREFERRED).result(PATIENCE_SECONDS)


def _alter(client: AdminClient, kind: Any, name: str, values: dict[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in values.items()]
    resource = ConfigResource(kind, name, incremental_configs=entries)
    client.incremental_alter_configs([resource])[resource].result(PATIENCE_SECONDS)
