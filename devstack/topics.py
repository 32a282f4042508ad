"""Topics of a running Kafka, managed with the admin protocol, which the embedded Kafka does not have."""

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from devstack.waiting import wait_until

_TIMEOUT_SECONDS, _SOON_SECONDS = 60.0, 5.0


def admin(bootstrap_servers: str) -> AdminClient:
    """Returns an admin client that does not log failures to reach servers that are still starting."""
    return AdminClient(
        {
            "bootstrap.servers": bootstrap_servers,
            "log_level": 0,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
        }
    )


def create_topic(
    client: AdminClient, name: str, partitions: int, *, replicas: int = -1, compacted: bool = True
) -> None:
    """Create the topic. An existing topic is not changed. `replicas`: -1 is the brokers' own number. Raises
    KafkaException.
    """
    policy = "compact" if compacted else "delete"
    topic = NewTopic(name, partitions, replicas, config={"cleanup.policy": policy})
    created = client.create_topics([topic], operation_timeout=_TIMEOUT_SECONDS)
    try:
        created[name].result(_TIMEOUT_SECONDS)
    except KafkaException as exception:
        if exception.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise


def wait_for_groups(bootstrap_servers: str) -> None:
    """Returns when consumer groups have a coordinator: a Kafka that has just started first creates a topic for that."""
    member = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "any", "log_level": 0})

    def has_coordinator() -> bool:
        try:
            return bool(member.committed([TopicPartition("any", 0)], timeout=_TIMEOUT_SECONDS))
        except KafkaException:
            return False

    try:
        wait_until(has_coordinator, "consumer groups have a coordinator", _TIMEOUT_SECONDS)
    finally:
        member.close()


def broker_ids(bootstrap_servers: str) -> set[int]:
    """Returns the ids of the brokers that serve; empty if none answers within five seconds."""
    try:
        return set(admin(bootstrap_servers).list_topics(timeout=_SOON_SECONDS).brokers)
    except KafkaException:
        return set()
