"""Kafka, as the projector uses it. The only module that imports aiokafka."""

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType
from aiokafka.errors import KafkaError
from aiokafka.helpers import create_ssl_context

from projector.errors import Unavailable
from projector.record import Kind, Partition, Record
from schemas.settings import ProjectorSettings

# Topics made, or given more partitions, while we run are seen after so long.
_METADATA_AGE_MS = 2000

logger = logging.getLogger(__name__)


def topic(settings: ProjectorSettings, kind: Kind) -> str:
    """The name of the topic of a kind."""
    return f"{settings.topic_prefix}{kind.value}"


class Source:
    """The records of some topics, shared with every other member of the group.

    Where to read from is the caller's to say, for each partition that it is given: until `place`, `poll` returns
    nothing of it. `on_revoked` is awaited before partitions are let go.
    """

    def __init__(
        self,
        settings: ProjectorSettings,
        kinds: Sequence[Kind],
        group_id: str,
        on_revoked: Callable[[], Awaitable[None]],
    ) -> None:
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._consumer = _consumer(settings, group_id)
        self._listener = _Listener(self, on_revoked)
        self._placed: set[Partition] = set()

    async def start(self) -> None:
        """Join the group. Raises Unavailable while no broker can be reached."""
        async with _errors():
            await self._consumer.start()
        self.join()

    async def stop(self) -> None:
        await self._consumer.stop()

    def join(self) -> None:
        """Ask for a share of the partitions."""
        self._consumer.subscribe(list(self._kinds), listener=self._listener)

    def leave(self) -> None:
        """Leave all partitions to the others, until `join`."""
        self._placed.clear()
        self._consumer.unsubscribe()

    def assigned(self) -> set[Partition]:
        """The partitions that are this member's now."""
        return {Partition(*partition) for partition in self._consumer.assignment()}

    def unplaced(self) -> list[Partition]:
        """Assigned partitions that wait for `place`."""
        return sorted(self.assigned() - self._placed)

    def displace(self, partitions: Iterable[Partition]) -> None:
        """Return nothing more of these partitions until `place`."""
        self._placed.difference_update(partitions)

    async def place(self, offsets: Mapping[Partition, int | None]) -> dict[Partition, int]:
        """Read on from these offsets, from the beginning where one is None; where that is. Raises Unavailable.

        An offset outside of what the topic holds is said in the log, and becomes the beginning.
        """
        wanted = [TopicPartition(*partition) for partition in offsets]
        async with _errors():
            begin = await self._consumer.beginning_offsets(wanted)
            end = await self._consumer.end_offsets(wanted)
        placed = {}
        for partition, offset in offsets.items():
            at = TopicPartition(*partition)
            placed[partition] = _inside(partition, offset, begin[at], end[at])
            async with _errors():
                self._consumer.seek(at, placed[partition])
        self._placed.update(offsets)
        return placed

    async def poll(self, most: int, wait: float) -> dict[Partition, list[Record]]:
        """Up to `most` records, in order for each partition; waits so many seconds for one. Raises Unavailable."""
        placed = frozenset(self._placed)
        async with _errors():
            polled = await self._consumer.getmany(timeout_ms=int(wait * 1000), max_records=most)
        # What was fetched before it was placed, or meanwhile, is not from where the caller wants it.
        return {
            Partition(*partition): records(messages, self._kinds[partition.topic])
            for partition, messages in polled.items()
            if messages and Partition(*partition) in placed & self._placed
        }

    def pause(self) -> None:
        """Fetch nothing more, and stay a member of the group."""
        self._consumer.pause(*self._consumer.assignment())

    async def reached(self, partition: Partition) -> int | None:
        """The next offset that would be read: past markers that are no records. None when not assigned."""
        try:
            return int(await self._consumer.position(TopicPartition(*partition)))
        except KafkaError:
            return None

    async def ends(self, partitions: Iterable[Partition]) -> dict[Partition, int]:
        """The offset after the last record of each partition. Raises Unavailable."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        async with _errors():
            found = await self._consumer.end_offsets(wanted) if wanted else {}
        return {Partition(*partition): offset for partition, offset in found.items()}

    async def commit(self, offsets: Mapping[Partition, int]) -> None:
        """Tell Kafka how far we are, for lag tools; we never resume from it. Raises Unavailable."""
        owned = self.assigned()
        wanted = {TopicPartition(*p): offset for p, offset in offsets.items() if p in owned}
        if wanted:
            async with _errors():
                await self._consumer.commit(wanted)


class _Listener(ConsumerRebalanceListener):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, source: Source, on_revoked: Callable[[], Awaitable[None]]) -> None:
        self._source = source
        self._on_revoked = on_revoked

    async def on_partitions_revoked(self, revoked: Iterable[TopicPartition]) -> None:
        if revoked:
            await self._on_revoked()
        self._source.displace([Partition(*partition) for partition in revoked])

    async def on_partitions_assigned(self, assigned: Iterable[TopicPartition]) -> None:
        self._source.displace([Partition(*partition) for partition in assigned])


class Retention(NamedTuple):
    """`policy` is `compact`, `delete` or `compact,delete`; the others bound what `delete` leaves, -1 for no bound."""

    policy: str
    milliseconds: int
    bytes: int


class Reader:
    """Reads any offsets of some topics, without a group: for redrive, replay and status."""

    def __init__(self, settings: ProjectorSettings, kinds: Sequence[Kind]) -> None:
        self._kinds = {topic(settings, kind): kind for kind in kinds}
        self._connection = connection(settings)
        self._consumer = _consumer(settings, None)

    async def start(self) -> None:
        """Raises Unavailable where no broker can be reached."""
        try:
            async with _errors():
                await self._consumer.start()
        except Unavailable:
            await self._consumer.stop()
            raise

    async def stop(self) -> None:
        await self._consumer.stop()

    async def partitions(self) -> list[Partition]:
        """All partitions of the topics; none of a topic that does not exist. Raises Unavailable."""
        admin = AIOKafkaAdminClient(**self._connection)
        async with _errors():
            await admin.start()
            try:
                topics = await admin.describe_topics(list(self._kinds))
            finally:
                await admin.close()
        return [
            Partition(topic["topic"], partition["partition"])
            for topic in topics
            for partition in sorted(topic["partitions"], key=lambda partition: partition["partition"])
        ]

    async def retention(self) -> dict[str, Retention] | None:
        """How long each topic keeps its records. None where the brokers do not say (the embedded ones cannot)."""
        admin = AIOKafkaAdminClient(**self._connection)
        wanted = [ConfigResource(ConfigResourceType.TOPIC, name) for name in self._kinds]
        try:
            async with _errors():
                await admin.start()
                answers = await admin.describe_configs(wanted)
        except Unavailable:
            return None
        finally:
            await admin.close()
        found = {}
        for answer in answers:
            for _, _, _, name, configs in answer.resources:
                values = {config[0]: config[1] for config in configs}
                found[name] = Retention(
                    values["cleanup.policy"], int(values["retention.ms"]), int(values["retention.bytes"])
                )
        return found

    async def range(self, partitions: Sequence[Partition]) -> dict[Partition, tuple[int, int]]:
        """The first offset that is still there, and the one after the last. Raises Unavailable."""
        wanted = [TopicPartition(*partition) for partition in partitions]
        if not wanted:
            return {}
        async with _errors():
            begin = await self._consumer.beginning_offsets(wanted)
            end = await self._consumer.end_offsets(wanted)
        return {Partition(*p): (begin[p], end[p]) for p in wanted}

    async def read(self, ranges: Mapping[Partition, tuple[int, int]], most: int = 5000) -> AsyncIterator[list[Record]]:
        """All records of these ranges [first, last), in order for each partition. Raises Unavailable."""
        open_ranges = {p: last for p, (first, last) in ranges.items() if first < last}
        self._consumer.assign([TopicPartition(*p) for p in open_ranges])
        for partition in open_ranges:
            self._consumer.seek(TopicPartition(*partition), ranges[partition][0])
        while open_ranges:
            async with _errors():
                polled = await self._consumer.getmany(
                    *(TopicPartition(*p) for p in open_ranges), timeout_ms=200, max_records=most
                )
            for at, messages in polled.items():
                partition = Partition(*at)
                last = open_ranges[partition]
                found = records([message for message in messages if message.offset < last], self._kinds[at.topic])
                if found:
                    yield found
            await self._close_finished(open_ranges)

    async def _close_finished(self, open_ranges: dict[Partition, int]) -> None:
        # The position, not the last record, says that a range is done: compaction leaves gaps at its end too.
        for partition, last in list(open_ranges.items()):
            async with _errors():
                if await self._consumer.position(TopicPartition(*partition)) >= last:
                    del open_ranges[partition]


def _inside(partition: Partition, offset: int | None, begin: int, end: int) -> int:
    if offset is None or begin <= offset <= end:
        return begin if offset is None else offset
    what = "records in between are gone" if offset < begin else "the topic was made again"
    logger.warning(
        "the position is outside of the topic (%s): reading it from the beginning",
        what,
        extra={"partition": list(partition), "position": offset, "begin": begin, "end": end},
    )
    return begin


@asynccontextmanager
async def open_reader(settings: ProjectorSettings, kinds: Sequence[Kind]) -> AsyncIterator[Reader]:
    """A started reader of these topics. Raises Unavailable."""
    reader = Reader(settings, kinds)
    await reader.start()
    try:
        yield reader
    finally:
        await reader.stop()


def records(messages: Iterable[Any], kind: Kind) -> list[Record]:
    """aiokafka's records of one topic as ours."""
    return [
        Record(
            message.topic,
            message.partition,
            message.offset,
            message.timestamp,
            message.key,
            message.value,
            message.headers,
            kind,
        )
        for message in messages
    ]


@asynccontextmanager
async def _errors() -> AsyncIterator[None]:
    """Whatever goes wrong with Kafka inside comes out as Unavailable."""
    try:
        yield
    except (KafkaError, OSError, TimeoutError) as error:
        raise Unavailable(f"Kafka: {str(error) or type(error).__name__}") from error


def _consumer(settings: ProjectorSettings, group_id: str | None) -> AIOKafkaConsumer:
    return AIOKafkaConsumer(
        group_id=group_id,
        # Its defaults, auto-commit and "latest", would both lose records.
        enable_auto_commit=False,
        auto_offset_reset="earliest",
        isolation_level="read_committed",
        metadata_max_age_ms=_METADATA_AGE_MS,
        fetch_max_wait_ms=200,
        max_partition_fetch_bytes=4 * 1024 * 1024,
        session_timeout_ms=int(settings.kafka_session_timeout * 1000),
        heartbeat_interval_ms=int(settings.kafka_session_timeout * 1000 / 4),
        client_id="leadview-projector",
        **connection(settings),
    )


def connection(settings: ProjectorSettings) -> dict[str, Any]:
    """What every client of Kafka needs, from the settings."""
    wanted: dict[str, Any] = {
        "bootstrap_servers": settings.kafka_bootstrap_servers,
        "security_protocol": settings.kafka_security_protocol,
    }
    if "SSL" in settings.kafka_security_protocol:
        wanted["ssl_context"] = _ssl_context(settings)
    if "SASL" in settings.kafka_security_protocol:
        wanted["sasl_mechanism"] = settings.kafka_sasl_mechanism
        wanted["sasl_plain_username"] = settings.kafka_sasl_username
        wanted["sasl_plain_password"] = settings.kafka_sasl_password
    return wanted


def _ssl_context(settings: ProjectorSettings) -> ssl.SSLContext:
    context: ssl.SSLContext = create_ssl_context(
        cafile=settings.kafka_ssl_ca_file,
        certfile=settings.kafka_ssl_cert_file,
        keyfile=settings.kafka_ssl_key_file,
    )
    return context
