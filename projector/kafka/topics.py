"""What the brokers say about the topics: whether they exist, their partitions, and how long they keep records."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError, TopicAuthorizationFailedError, UnknownTopicOrPartitionError

from projector.kafka.client import connection, errors, start, topic
from projector.kafka.histories import TopicsRequest
from projector.record import Partition
from schemas.resources import Kind
from schemas.settings import ProjectorSettings


class Retention(NamedTuple):
    """How long a topic keeps its records.

    `policy` is `compact`, `delete` or `compact,delete`. The other two limit what `delete` keeps; -1 means no limit.
    """

    policy: str
    milliseconds: int
    bytes: int

    @property
    def compacts(self) -> bool:
        return "compact" in self.policy

    @property
    def deletes(self) -> bool:
        """Whether records vanish although no newer one has their key."""
        return "delete" in self.policy and (self.milliseconds >= 0 or self.bytes >= 0)

    def __str__(self) -> str:
        return f"cleanup.policy={self.policy}, retention.ms={self.milliseconds}, retention.bytes={self.bytes}"


class Topic(NamedTuple):
    """A topic. `retention` is None if the brokers do not report it; `leaderless` are partitions that nobody serves."""

    name: str
    exists: bool
    allowed: bool
    """Whether this user may describe it."""
    partitions: tuple[Partition, ...]
    leaderless: tuple[int, ...]
    retention: Retention | None
    id: str = ""
    """Another one whenever the topic was made again; empty if the brokers do not say it (Kafka before 2.8)."""


async def describe(settings: ProjectorSettings, kinds: Sequence[Kind]) -> list[Topic]:
    """Returns the topics of these kinds, in this order. Raises Unavailable."""
    names = [topic(settings, kind) for kind in kinds]
    admin = AIOKafkaAdminClient(**connection(settings))
    try:
        await start(admin, settings)
        async with errors():
            described = {found["topic"]: found for found in await _metadata(admin, names)}
        kept = await _retention(admin, names)
    finally:
        await admin.close()
    return [_topic(name, described.get(name), kept.get(name)) for name in names]


async def _metadata(admin: AIOKafkaAdminClient, names: Sequence[str]) -> Any:
    return (await admin._send_request(TopicsRequest(names))).to_object()["topics"]  # noqa: SLF001


def _topic(name: str, described: Any, retention: Retention | None) -> Topic:
    error = described["error_code"] if described else UnknownTopicOrPartitionError.errno
    partitions = described["partitions"] if described else ()
    numbers = sorted(partition["partition"] for partition in partitions)
    return Topic(
        name=name,
        exists=error != UnknownTopicOrPartitionError.errno,
        allowed=error != TopicAuthorizationFailedError.errno,
        partitions=tuple(Partition(name, number) for number in numbers),
        leaderless=tuple(sorted(it["partition"] for it in partitions if it["leader"] < 0)),
        retention=retention,
        id=described.get("topic_id", "") if described else "",
    )


async def _retention(admin: AIOKafkaAdminClient, names: Sequence[str]) -> dict[str, Retention]:
    """Returns how long each topic keeps its records, as far as the brokers report it; embedded ones do not."""
    try:
        answers = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, name) for name in names])
    except (KafkaError, OSError, TimeoutError):
        return {}
    found = {}
    for answer in answers:
        for error, _, _, name, configs in answer.resources:
            values = {config[0]: config[1] for config in configs}
            if not error and "cleanup.policy" in values:  # there are none of a topic that does not exist
                found[name] = Retention(
                    values["cleanup.policy"], int(values["retention.ms"]), int(values["retention.bytes"])
                )
    return found
