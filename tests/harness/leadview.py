"""Leadview for tests, as operators have it: real processes, topics of their own, and what the topics say is right."""

import os
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple, cast

from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka import Message as KafkaMessage
from confluent_kafka.admin._listoffsets import OffsetSpec

from devstack import topics
from devstack.child import Child
from devstack.ports import free_port
from devstack.waiting import wait_until
from projector.record import Partition, Record
from projector.reference import Entity, documents_of
from schemas import names, resources
from tests.harness import stored
from tests.harness.api_server import ApiServer
from tests.harness.crm import Message
from tests.harness.services import Kafka, RedisService
from tests.harness.waiting import PATIENCE_SECONDS

ROOT = Path(__file__).parents[2]
PARTITIONS = 3
_PROJECTOR = (sys.executable, "-m", "projector")
_COMMAND_SECONDS = 4 * PATIENCE_SECONDS
_START, _HEAD = OffsetSpec.earliest(), OffsetSpec.latest()  # type: ignore[no-untyped-call]


class Finished(NamedTuple):
    """A command that has ended."""

    status: int
    output: str

    def __contains__(self, text: object) -> bool:
        return str(text) in self.output


class Leadview:
    """One Leadview: `prefix` keeps its topics and groups apart, `redis` is its own while the test runs."""

    def __init__(self, kafka: Kafka, service: RedisService, prefix: str, directory: Path, stack: ExitStack) -> None:
        self.kafka = kafka
        self.redis = stack.enter_context(service.client())
        self.prefix = prefix
        self._url = service.url
        self._directory = directory
        self._stack = stack
        self._producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 5, "log_level": 0})
        self.admin = topics.admin(kafka.bootstrap_servers)
        for kind in resources.KINDS:
            kafka.create_topic(f"{prefix}{kind.topic}", PARTITIONS)
        wait_until(self._has_leaders, "every partition has a leader")

    def environment(self, **settings: object) -> dict[str, str]:
        """All variables of a process of ours."""
        ours: dict[str, object] = {
            "redis_url": self._url,
            "kafka_bootstrap_servers": self.kafka.bootstrap_servers,
            "topic_prefix": self.prefix,
            "group_id": f"{self.prefix}group",
            "batch_records": 300,  # many checkpoints
        }
        if self.kafka.kind == "apache":  # others may refuse less than the six seconds that are Kafka's own default
            ours["kafka_session_timeout"] = 2
        inherited = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
        named = {f"LEADVIEW_{name.upper()}": str(value) for name, value in (ours | settings).items()}
        return inherited | {"PYTHONPATH": str(ROOT), "COLUMNS": "160"} | named

    def publish(self, messages: Iterable[Message]) -> None:
        """Send these, and return when Kafka has all of them."""
        for message in messages:
            self._producer.produce(
                f"{self.prefix}{message.kind.topic}", message.value, message.key, headers=list(message.headers)
            )
            self._producer.poll(0)
        assert self._producer.flush(PATIENCE_SECONDS) == 0

    def start(self, *words: str, command: Sequence[str] = _PROJECTOR, **settings: object) -> Child:
        """A process of the projector's program in the background, stopped when the test ends."""
        log = self._directory / f"{len(list(self._directory.iterdir()))}-{words[0]}.log"
        child = Child([*command, *words], log=log, environment=self.environment(**settings))
        self._stack.callback(child.stop)
        return child

    def run(self, *words: str, command: Sequence[str] = _PROJECTOR, **settings: object) -> Finished:
        """A command, to its end."""
        done = subprocess.run(
            [*command, *words],
            env=self.environment(**settings),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_SECONDS,
            check=False,
        )
        return Finished(done.returncode, done.stdout)

    @contextmanager
    def api(self, workers: int = 1) -> Iterator[ApiServer]:
        """`python -m api` on a port of its own."""
        api = ApiServer(free_port())
        command = [sys.executable, "-m", "api"]
        environment = self.environment(api_port=api.port, api_workers=workers)
        child = Child(command, log=self._directory / "api.log", environment=environment)
        try:
            wait_until(lambda: _is_ready(child, api), "the API is ready")
            yield api
        finally:
            child.stop()

    def records(self) -> list[Record]:
        """Everything that the topics hold now, in order for each partition."""
        heads = self._offsets(_HEAD)
        first = self._offsets(_START)
        left = {partition: head for partition, head in heads.items() if first[partition] < head}
        consumer = Consumer({"bootstrap.servers": self.kafka.bootstrap_servers, "group.id": "none", "log_level": 0})
        consumer.assign([TopicPartition(*partition, first[partition]) for partition in left])
        found = []
        try:
            while left:
                for message in consumer.consume(1000, timeout=0.1):
                    record = self._record(message)
                    partition = Partition(record.topic, record.partition)
                    if record.offset < heads[partition]:
                        found.append(record)
                    if record.offset + 1 >= heads[partition]:
                        left.pop(partition, None)
        finally:
            consumer.close()
        return found

    def expected(self) -> dict[Entity, bytes]:
        """The documents that the topics mean."""
        return documents_of(self.records())

    def documents(self, generation: int = 1) -> dict[Entity, bytes]:
        """The documents that Redis has."""
        return stored.documents(self.redis, generation)

    def wait_until_current(self, seconds: float = 2 * PATIENCE_SECONDS) -> None:
        """Until the projectors have applied all that the topics hold now."""
        heads = {names.position(*at).encode(): head for at, head in self._offsets(_HEAD).items()}

        def is_current() -> bool:
            positions = self.redis.hgetall(names.POSITIONS)
            return all(int(positions.get(field, b"0").split()[0]) >= head for field, head in heads.items())

        wait_until(is_current, "the projectors are current", seconds)

    def wait_until_served(self) -> None:
        """Until the first generation is complete."""
        self.wait_until_current()
        wait_until(lambda: self.redis.hget(names.GENERATIONS, "live") == b"1", "generation 1 is served")

    def generations(self) -> dict[str, str]:
        return {name.decode(): value.decode() for name, value in self.redis.hgetall(names.GENERATIONS).items()}

    def target(self, generation: int = 2) -> int:
        """Records that the replay of a rebuild is to apply, over all partitions."""
        return sum(target for _, target in self._replay(generation))

    def progress(self, generation: int = 2) -> int:
        """Those of them that it has applied."""
        return sum(min(position, target) for position, target in self._replay(generation))

    def _replay(self, generation: int) -> list[tuple[int, int]]:
        """Position and target of each partition."""
        ledger = {name.decode(): value for name, value in self.redis.hgetall(names.rebuild(generation)).items()}
        return [
            (int(ledger.get(field.removeprefix("target:"), b"0").split()[0]), int(value))
            for field, value in ledger.items()
            if field.startswith("target:")
        ]

    def _has_leaders(self) -> bool:
        try:
            return bool(self._offsets(_HEAD))
        except KafkaException:  # brokers hear of a new topic one after the other
            # Sometimes librdkafka keeps "unknown topic" for as long as one asks: a new client has heard nothing yet.
            self.admin = topics.admin(self.kafka.bootstrap_servers)
            return False

    def _offsets(self, which: OffsetSpec) -> dict[Partition, int]:
        wanted = [
            TopicPartition(f"{self.prefix}{kind.topic}", number)
            for kind in resources.KINDS
            for number in range(PARTITIONS)
        ]
        found = self.admin.list_offsets(dict.fromkeys(wanted, which))
        return {
            Partition(at.topic, at.partition): result.result(PATIENCE_SECONDS).offset for at, result in found.items()
        }

    def _record(self, message: KafkaMessage) -> Record:
        assert message.error() is None, message.error()
        topic, partition, offset = message.topic(), message.partition(), message.offset()
        assert topic is not None
        assert partition is not None
        assert offset is not None
        headers = cast(tuple[tuple[str, bytes], ...], tuple(message.headers() or ()))
        kind = resources.BY_TOPIC[topic.removeprefix(self.prefix)]
        return Record(topic, partition, offset, message.timestamp()[1], message.key(), message.value(), headers, kind)


def _is_ready(child: Child, api: ApiServer) -> bool:
    child.check_running()
    try:
        return api.get("/readyz").status == 200
    except OSError:
        return False
