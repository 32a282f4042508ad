"""Asks the brokers about the topics: whether they exist, for how long they keep records, and about their history.

A topic that is deleted and created again has another id (Kafka 2.8 and later). A leader writes its epoch, which counts
the leaders of a partition, into each batch: so for an epoch, the present leader knows up to which offset its log is the
one that was read (Kafka 2.3 and later). aiokafka has neither request, so they are described here. Both need the right
DESCRIBE on the topic, which READ includes. What an older broker does not say is unknown.
"""

import asyncio
import random
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any, NamedTuple

from aiokafka import TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResourceType
from aiokafka.errors import (
    IncompatibleBrokerVersion,
    KafkaConnectionError,
    KafkaError,
    LeaderNotAvailableError,
    NodeNotReadyError,
    TopicAuthorizationFailedError,
    UnknownTopicOrPartitionError,
    UnsupportedVersionError,
    for_code,
)
from aiokafka.protocol.abstract import AbstractType
from aiokafka.protocol.admin import DescribeConfigsRequest
from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.metadata import MetadataRequest_v4, MetadataRequest_v5
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

from projector.kafka.brokers import decoded_once
from projector.kafka.client import client_of, connection, errors, start, topic
from projector.record import Partition
from schemas.resources import Kind
from schemas.settings import ProjectorSettings

DELETIONS_MS = 86_400_000
"""Kafka's default for `delete.retention.ms`."""


class Retention(NamedTuple):
    """The time for which a topic keeps its records.

    `policy` is `compact`, `delete` or `compact,delete`. `milliseconds` and `bytes` limit what `delete` keeps; -1 means
    no limit. `deletions` is the time in ms for which `compact` keeps a null value, so that readers see the deletion.
    """

    policy: str
    milliseconds: int
    bytes: int
    deletions: int = DELETIONS_MS

    @property
    def compacts(self) -> bool:
        return "compact" in self.policy

    @property
    def deletes(self) -> bool:
        """True if records are removed although no newer one has their key."""
        return "delete" in self.policy and (self.milliseconds >= 0 or self.bytes >= 0)

    def __str__(self) -> str:
        return f"cleanup.policy={self.policy}, retention.ms={self.milliseconds}, retention.bytes={self.bytes}"


class Topic(NamedTuple):
    """A topic. `retention` is None if the brokers do not report it; `leaderless` are partitions that nobody serves."""

    name: str
    exists: bool
    allowed: bool
    """True if this user may describe it."""
    partitions: tuple[Partition, ...]
    leaderless: tuple[int, ...]
    retention: Retention | None
    id: str = ""
    """A new id whenever the topic is created again; empty if the brokers do not say it (Kafka before 2.8)."""
    cluster: str = ""
    """The id of the Kafka cluster; empty if the brokers do not say it."""
    configured: bool = True
    """False if this user may not ask for its configuration, which has its retention."""


async def describe(settings: ProjectorSettings, kinds: Sequence[Kind]) -> list[Topic]:
    """Returns the topics of these kinds, in this order. Raises Unavailable."""
    admin = AIOKafkaAdminClient(**connection(settings))
    try:
        await start(admin, settings)
        return await described(client_of(admin), [topic(settings, kind) for kind in kinds])
    finally:
        await admin.close()


async def described(client: Any, names: Sequence[str]) -> list[Topic]:
    """Asks any broker for these topics, with an AIOKafkaClient. Raises Unavailable."""
    async with errors():
        answer = await _metadata(client, names)
    return _topics(tuple(names), answer, await _retention(client, names))


def _topics(names: tuple[str, ...], answer: Any, kept: Mapping[str, Retention | None]) -> list[Topic]:
    """`kept` has None for a topic whose configuration this user may not ask for."""
    return [
        found._replace(retention=kept.get(found.name), configured=kept.get(found.name, found) is not None)
        for found in _without_retention(names, answer)
    ]


@lru_cache(maxsize=8)
def _without_retention(names: tuple[str, ...], answer: Any) -> tuple[Topic, ...]:
    """Returns what an answer says. Usually it is the one before (`brokers.decoded_once`)."""
    described = answer.to_object()
    of_topics = {found["topic"]: found for found in described["topics"]}
    cluster = described.get("cluster_id") or ""
    return tuple(_topic(name, of_topics.get(name), cluster) for name in names)


def _topic(name: str, described: Any, cluster: str) -> Topic:
    error = described["error_code"] if described else UnknownTopicOrPartitionError.errno
    partitions = described["partitions"] if described else ()
    numbers = sorted(partition["partition"] for partition in partitions)
    return Topic(
        name=name,
        exists=error != UnknownTopicOrPartitionError.errno,
        allowed=error != TopicAuthorizationFailedError.errno,
        partitions=tuple(Partition(name, number) for number in numbers),
        leaderless=tuple(sorted(it["partition"] for it in partitions if it["leader"] < 0)),
        retention=None,
        id=described.get("topic_id", "") if described else "",
        cluster=cluster,
    )


async def _retention(client: Any, names: Sequence[str]) -> dict[str, Retention | None]:
    """Returns how long each topic keeps its records, as far as the brokers report it; embedded ones do not. It is None
    if this user may not ask for it.
    """
    try:
        request = DescribeConfigsRequest([(ConfigResourceType.TOPIC, name, None) for name in names])
        answer = await client.send(_any_broker(client), request)
    except (KafkaError, OSError, TimeoutError, IncompatibleBrokerVersion, NotImplementedError):
        return {}
    found: dict[str, Retention | None] = {}
    for error, _, _, name, configs in answer.resources:
        values = {config[0]: config[1] for config in configs}
        if error == TopicAuthorizationFailedError.errno:
            found[name] = None
        elif not error and "cleanup.policy" in values:  # there are none of a topic that does not exist
            found[name] = Retention(
                values["cleanup.policy"],
                int(values["retention.ms"]),
                int(values["retention.bytes"]),
                int(values.get("delete.retention.ms") or DELETIONS_MS),
            )
    return found


def _any_broker(client: Any) -> Any:
    node = client.get_random_node()
    if node is None:
        raise LeaderNotAvailableError("no broker is known")
    return node


UNKNOWN_EPOCH = -1
_PATIENCE_SECONDS = 5.0
_NO_ID = bytes(16)
_ANY_REPLICA = -1
_NO_EPOCH_CHECK = -1


class _Uuid(AbstractType):  # type: ignore[misc]  # aiokafka has no types
    """16 bytes, as the text that Kafka's own tools show. An empty text is no id."""

    @classmethod
    def encode(cls, text: str) -> bytes:
        return urlsafe_b64decode(f"{text}==") if text else _NO_ID  # topics are asked for by their names

    @classmethod
    def decode(cls, data: BytesIO) -> str:
        found = data.read(len(_NO_ID))
        return "" if found == _NO_ID else urlsafe_b64encode(found).decode().rstrip("=")


@decoded_once
class _MetadataResponse_v10(Response):  # type: ignore[misc]  # noqa: N801 - as aiokafka names them
    API_KEY = 3
    API_VERSION = 10
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "brokers",
            CompactArray(
                ("node_id", Int32),
                ("host", CompactString("utf-8")),
                ("port", Int32),
                ("rack", CompactString("utf-8")),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_id", CompactString("utf-8")),
        ("controller_id", Int32),
        (
            "topics",
            CompactArray(
                ("error_code", Int16),
                ("topic", CompactString("utf-8")),
                ("topic_id", _Uuid),
                ("is_internal", Boolean),
                (
                    "partitions",
                    CompactArray(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader", Int32),
                        ("leader_epoch", Int32),
                        ("replicas", CompactArray(Int32)),
                        ("isr", CompactArray(Int32)),
                        ("offline_replicas", CompactArray(Int32)),
                        ("tags", TaggedFields),
                    ),
                ),
                ("authorized_operations", Int32),
                ("tags", TaggedFields),
            ),
        ),
        ("cluster_authorized_operations", Int32),
        ("tags", TaggedFields),
    )


class _MetadataRequest_v10(RequestStruct):  # type: ignore[misc]  # noqa: N801
    FLEXIBLE_VERSION = True
    API_KEY = 3
    API_VERSION = 10
    RESPONSE_TYPE = _MetadataResponse_v10
    SCHEMA = Schema(
        ("topics", CompactArray(("topic_id", _Uuid), ("name", CompactString("utf-8")), ("tags", TaggedFields))),
        ("allow_auto_topic_creation", Boolean),
        ("include_cluster_authorized_operations", Boolean),
        ("include_topic_authorized_operations", Boolean),
        ("tags", TaggedFields),
    )


class TopicsRequest(Request[MetadataRequest_v4 | MetadataRequest_v5 | _MetadataRequest_v10]):  # type: ignore[misc]
    """Asks for topics by name, and never lets a broker create one that is missing: it would not be compacted.

    The answer of a broker that knows ids has a `topic_id` for each topic.
    """

    API_KEY = 3

    def __init__(self, names: Iterable[str]) -> None:
        self._names = list(names)

    def build(self, request_struct_class: Any) -> Any:
        if request_struct_class is _MetadataRequest_v10:
            topics: list[tuple[str, str, dict[int, bytes]]] = [("", name, {}) for name in self._names]
            return request_struct_class(topics, False, False, False, {})
        return request_struct_class(self._names, False)


class _EpochsResponse_v3(Response):  # type: ignore[misc]  # noqa: N801
    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(("error_code", Int16), ("partition", Int32), ("leader_epoch", Int32), ("end_offset", Int64)),
                ),
            ),
        ),
    )


class _EpochsRequest_v3(RequestStruct):  # type: ignore[misc]  # noqa: N801
    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = _EpochsResponse_v3
    SCHEMA = Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                ("partitions", Array(("partition", Int32), ("current_leader_epoch", Int32), ("leader_epoch", Int32))),
            ),
        ),
    )


class _EpochsRequest(Request[_EpochsRequest_v3]):  # type: ignore[misc]
    API_KEY = 23

    def __init__(self, leader_epochs: Mapping[Partition, int]) -> None:
        self._leader_epochs = leader_epochs

    def build(self, request_struct_class: Any) -> Any:
        topics: dict[str, list[tuple[int, int, int]]] = {}
        for partition, epoch in self._leader_epochs.items():
            topics.setdefault(partition.topic, []).append((partition.partition, _NO_EPOCH_CHECK, epoch))
        return request_struct_class(_ANY_REPLICA, list(topics.items()))


class Fork(NamedTuple):
    """Up to `offset`, the log of a partition is the one that the leader asked about had. `epoch` is that of the batch
    there.
    """

    offset: int
    epoch: int


async def present(client: Any, names: Collection[str]) -> list[Topic]:
    """Asks any broker for these topics without their retention, with an AIOKafkaClient. Raises Unavailable."""
    async with errors(), asyncio.timeout(_PATIENCE_SECONDS):
        answer = await _metadata(client, names)
    return _topics(tuple(names), answer, {})


async def forks(client: Any, leader_epochs: Mapping[Partition, int]) -> dict[Partition, Fork]:
    """Returns, for each partition, the offset up to which its log is still that of the leader of this epoch.

    Partitions of which the brokers do not say it are left out. Raises Unavailable, also while one has no leader.
    """
    by_leader: dict[int, dict[Partition, int]] = {}
    for partition, epoch in leader_epochs.items():
        leader = client.cluster.leader_for_partition(TopicPartition(*partition))
        by_leader.setdefault(-1 if leader is None else leader, {})[partition] = epoch
    found: dict[Partition, Fork] = {}
    async with errors(), asyncio.timeout(_PATIENCE_SECONDS):
        for leader, asked in by_leader.items():
            if leader < 0:
                raise LeaderNotAvailableError(", ".join(f"{topic}:{number}" for topic, number in asked))
            try:
                answer = await client.send(leader, _EpochsRequest(asked))
            except (IncompatibleBrokerVersion, NotImplementedError):  # of aiokafka: the broker does not know it
                continue
            found |= _forks(answer)
    return found


def _forks(answer: Any) -> dict[Partition, Fork]:
    found = {}
    for name, partitions in answer.topics:
        for error, number, epoch, offset in partitions:
            if error == UnsupportedVersionError.errno:
                continue
            if error:  # such as: another broker leads by now
                raise for_code(error)(f"{name}:{number}")
            if offset >= 0:
                found[Partition(name, number)] = Fork(offset, epoch)
    return found


async def _metadata(client: Any, names: Iterable[str]) -> Any:
    """Returns what one of the brokers says about these topics and its cluster. The known brokers may include a dead
    one.
    """
    error: KafkaError = LeaderNotAvailableError("no broker is known")
    known = [broker.nodeId for broker in client.cluster.brokers()]
    for node in random.sample(known, len(known)):
        try:
            return await client.send(node, TopicsRequest(names))
        except (KafkaConnectionError, NodeNotReadyError) as not_there:
            error = not_there
    raise error
