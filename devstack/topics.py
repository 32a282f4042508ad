"""Topics of a running Kafka, by its admin interface. (The embedded Kafka has none.)"""

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

_TIMEOUT_SECONDS = 60.0


def admin(bootstrap_servers: str) -> AdminClient:
    """An admin client that is quiet about servers which are not up yet."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
    )


def create_topic(
    bootstrap_servers: str, name: str, partitions: int, *, replicas: int = 1, compacted: bool = True
) -> None:
    """Creates the topic, or leaves one of this name as it is. Raises KafkaException."""
    policy = "compact" if compacted else "delete"
    topic = NewTopic(name, partitions, replicas, config={"cleanup.policy": policy})
    client = admin(bootstrap_servers)  # kept: without it the request would be dropped
    created = client.create_topics([topic], operation_timeout=_TIMEOUT_SECONDS)
    try:
        created[name].result(_TIMEOUT_SECONDS)
    except KafkaException as exception:
        if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def broker_ids(bootstrap_servers: str) -> set[int]:
    """The brokers that serve, empty where none can be reached within a short time."""
    try:
        return set(admin(bootstrap_servers).list_topics(timeout=0.5).brokers)
    except KafkaException:
        return set()
