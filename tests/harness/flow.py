"""The whole projector for tests: a producer, topics on a real Kafka, a Redis, and projectors as processes.

All that is published goes to the pure reference as well, with the coordinates that Kafka gave it.
"""

import os
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any, Self

import msgspec
import redis
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka import Message as Delivered
from confluent_kafka.cimpl import NewPartitions
from redis.exceptions import RedisClusterException

from devstack.child import Child
from devstack.redis_cluster import RedisCluster
from devstack.redis_sentinel import RedisSentinel
from devstack.redis_server import RedisServer
from devstack.topics import admin
from projector.record import Record
from projector.reference import Reference
from schemas import names, resources
from tests.harness import stored
from tests.harness.crm import Message, at_ms
from tests.harness.services import Kafka, client_of
from tests.harness.waiting import PATIENCE_SECONDS, wait_until

SETTLE_SECONDS = 3 * PATIENCE_SECONDS


class Flow:
    """One test's world: a context manager that ends everything that it has started."""

    def __init__(
        self, kafka: Kafka, prefix: str, server: RedisServer | RedisCluster | RedisSentinel, directory: Path
    ) -> None:
        self.kafka = kafka
        self.prefix = prefix
        self.server = server
        self.group = f"{prefix}group"
        self.reference = _Reference()
        self.ends: dict[tuple[str, int], int] = {}
        self._directory = directory
        self._children: list[Child] = []
        self._producer = self._new_producer()
        self.client = client_of(server.url)

    def create_topics(self, partitions: int = 3) -> None:
        for kind in resources.KINDS:
            self.kafka.create_topic(self.topic(kind), partitions)

    def topic(self, kind: resources.Kind) -> str:
        return f"{self.prefix}{kind.topic}"

    def publish(self, *messages: Message, partition: int | None = None) -> None:
        """Send these, and return when Kafka has them all."""
        self.publish_all(messages, partition)

    def publish_all(self, messages: Iterable[Message], partition: int | None = None) -> None:
        place: dict[str, Any] = {} if partition is None else {"partition": partition}
        for message in messages:
            self._producer.produce(
                self.topic(message.kind),
                key=message.key,
                value=message.value,
                headers=list(message.headers),
                timestamp=at_ms(message.seconds),
                on_delivery=partial(self._delivered, message),
                **place,
            )
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def add_partitions(self, kind: resources.Kind, number: int) -> None:
        """Raise the number of partitions of a topic."""
        client = admin(self.kafka.bootstrap_servers)  # kept: without it the request would be dropped
        topic = self.topic(kind)
        client.create_partitions([NewPartitions(topic, number)])[topic].result(PATIENCE_SECONDS)
        self._producer = self._new_producer()  # the former one does not know of them yet

    def topic_is_new(self, kind: resources.Kind) -> None:
        """The topic was deleted and made again: what was published to it is forgotten."""
        self.ends = {place: end for place, end in self.ends.items() if place[0] != self.topic(kind)}
        self.reference.forget(kind)
        self._producer = self._new_producer()

    def start(self, name: str = "projector", command: str = "run", **settings: object) -> Child:
        """A projector process. Its log is `<name>.log`."""
        command_line = [sys.executable, "-m", "projector", command]
        child = Child(command_line, log=self.log(name), environment=self.environment(**settings))
        self._children.append(child)
        return child

    def log(self, name: str = "projector") -> Path:
        return self._directory / f"{name}.log"

    def command(self, *arguments: str, **settings: object) -> subprocess.CompletedProcess[str]:
        """Run `python -m projector <arguments>` to its end."""
        return subprocess.run(
            [sys.executable, "-m", "projector", *arguments],
            env=self.environment(**settings),
            capture_output=True,
            text=True,
            timeout=4 * PATIENCE_SECONDS,
            check=False,
        )

    def environment(self, **settings: object) -> dict[str, str]:
        ours = {
            "redis_url": self.server.url,
            "kafka_bootstrap_servers": self.kafka.bootstrap_servers,
            "topic_prefix": self.prefix,
            "group_id": self.group,
        }
        outside = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
        return outside | {f"LEADVIEW_{name.upper()}": str(value) for name, value in (ours | settings).items()}

    def positions(self) -> dict[tuple[str, int], int]:
        """The next offset of each partition, as Redis has it."""
        found = {}
        for field, value in self.client.hgetall(names.POSITIONS).items():
            topic, colon, partition = field.decode().rpartition(":")
            if colon:
                found[topic, int(partition)] = int(value.split()[0])
        return found

    def caught_up(self, *kinds: resources.Kind) -> bool:
        """Has every record (of these kinds) been covered by a checkpoint?"""
        topics = {self.topic(kind) for kind in kinds or resources.KINDS}
        positions = self.positions()
        return all(positions.get(place) == end for place, end in self.ends.items() if place[0] in topics)

    async def settled(self, timeout: float = SETTLE_SECONDS, *, after_crash: bool = False) -> None:
        """Until everything is covered, every job done, and every document is what the reference says."""
        await wait_until(self._is_settled, "all records are applied", timeout)
        assert stored.documents(self.client) == self.reference.documents()
        stored.assert_consistent(self.client, after_crash=after_crash)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """What Kafka has for a consumer group, where it has anything."""
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": group, "log_level": 0})
        try:
            found = consumer.committed([TopicPartition(*place) for place in self.ends], timeout=PATIENCE_SECONDS)
        finally:
            consumer.close()
        return {(at.topic, at.partition): at.offset for at in found if at.offset >= 0}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exception: object) -> None:
        for child in self._children:
            child.kill()
        self.client.close()

    def _is_settled(self) -> bool:
        try:
            if not self.caught_up() or self.client.exists(names.JOBS):
                return False
            return stored.documents(self.client) == self.reference.documents()
        except (redis.ConnectionError, redis.TimeoutError, redis.exceptions.ClusterError, RedisClusterException):
            return False

    def _delivered(self, message: Message, error: KafkaError | None, delivered: Delivered) -> None:
        assert error is None, error
        topic, partition, offset = delivered.topic(), delivered.partition(), delivered.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        self.ends[topic, partition] = offset + 1
        key, value, headers = message.key, message.value, message.headers
        self.reference.add(
            Record(topic, partition, offset, delivered.timestamp()[1], key, value, headers, message.kind)
        )

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


class _Reference(Reference):
    def forget(self, kind: resources.Kind) -> None:
        """As if no record of this kind had ever been there."""
        self._newest = {entity: newest for entity, newest in self._newest.items() if entity[0] is not kind}


def ask(port: int, path: str) -> tuple[int, Any]:
    """What the metrics port answers: status, and JSON or text. Status 0 where nothing listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.status, _body(answer.read())
    except urllib.error.HTTPError as error:
        return error.code, _body(error.read())
    except urllib.error.URLError:
        return 0, None


def _body(content: bytes) -> Any:
    return msgspec.json.decode(content) if content.startswith(b"{") else content.decode()
