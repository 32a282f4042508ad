"""Reads what the status and the doctor judge: Redis and Kafka, each within a short time, whether the other is there."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import Any, TypeVar

import msgspec

from projector.errors import ProjectorError, Unavailable
from projector.kafka.reader import Reader
from projector.kafka.topics import Topic
from projector.ledger import copies, writers
from projector.ledger.checkpoint import Position
from projector.ledger.control import ControlRecord
from projector.ledger.writers import Writer
from projector.record import Partition
from projector.redis.store import Store
from schemas import names
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

FIRST_SECONDS = 1.2
"""How long Redis and Kafka may take for their first answer. What the other one says is shown within two seconds."""
_SECONDS = 5.0
_OLDEST_SECONDS = 2.0
_PEEK_BYTES = 262_144
"""Of the records that wait, only the time of the first one is wanted."""

T = TypeVar("T")
Ranges = Mapping[Partition, tuple[int, int]]


class Memory(msgspec.Struct, frozen=True):
    """The memory of one Redis server, in bytes; `limit` is 0 if there is none."""

    used: int
    limit: int
    policy: str

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "Memory":
        """Returns what INFO memory says."""
        policy = str(fields.get("maxmemory_policy", "noeviction"))
        return cls(int(fields["used_memory"]), int(fields.get("maxmemory") or 0), policy)


class RedisPart(msgspec.Struct, frozen=True):
    """What Redis says. `record` is None if Redis is empty."""

    record: ControlRecord | None
    dead_letters: int
    memories: list[Memory]
    writers: list[Writer]
    servers: dict[bytes, str] = {}
    """The addresses of the servers that hold the copies of the record, by tag; empty if Redis is not a cluster."""
    other_layouts: list[int] = []
    """The layouts of other versions of Leadview that have data in this Redis as well."""

    def position(self, partition: Partition) -> Position | None:
        """Returns the position of a partition; None if nothing of it has been applied."""
        return self.record.position(partition) if self.record else None


class KafkaPart(msgspec.Struct, frozen=True):
    """What Kafka says: the topics, and the first offset and the end offset of each partition."""

    topics: list[Topic]
    ranges: Ranges


class Survey(msgspec.Struct, frozen=True):
    """What was found. In place of a part that cannot be read, there is the error.

    `oldest` has Kafka's timestamp, in ms since 1970, of the oldest record that is not applied yet, for each partition
    that is behind; None if that is not known.
    """

    redis: RedisPart | ProjectorError
    kafka: KafkaPart | ProjectorError
    oldest: dict[Partition, int] | None
    at: float
    """When this was read, in ms since 1970."""
    redis_seconds: float = 0.0
    """How long Redis was being asked."""

    def ages(self) -> dict[Partition, float] | None:
        """Returns how many seconds the oldest record has waited, for each partition that is behind; None: unknown."""
        if self.oldest is None:
            return None
        return {partition: max(0.0, (self.at - stamp) / 1000) for partition, stamp in self.oldest.items() if stamp}

    def waiting(self) -> dict[Partition, tuple[int, int]] | None:
        """Returns the offsets [first, last) that are not applied yet, of each partition; None if that is not known."""
        if isinstance(self.redis, ProjectorError) or isinstance(self.kafka, ProjectorError):
            return None
        return _waiting(self.redis, self.kafka)


async def survey(store: Store, settings: ProjectorSettings) -> Survey:
    """Read Redis and Kafka. An error of theirs is a result."""
    reader = Reader(settings, KINDS, _PEEK_BYTES)
    try:
        redis_answers, kafka_answers = await asyncio.gather(
            _result("Redis", store.memories(), FIRST_SECONDS), _result("Kafka", reader.start(), FIRST_SECONDS)
        )
        # The end offsets are read before the positions: otherwise records that are published in between count as lag.
        if isinstance(kafka := kafka_answers, ProjectorError):
            kafka_part: KafkaPart | ProjectorError = kafka
        else:
            kafka_part = await _result("Kafka", _read_kafka(reader), _SECONDS)
        asked_at = time.monotonic()
        if isinstance(redis := redis_answers, ProjectorError):
            redis_part: RedisPart | ProjectorError = redis
        else:
            redis_part = await _result("Redis", _read_redis(store), _SECONDS)
        seconds = time.monotonic() - asked_at
        if isinstance(redis_part, Unavailable) and store.sharded:
            redis_part = await _with_silent_shards(redis_part, store)
        return Survey(
            redis_part, kafka_part, await _oldest(reader, redis_part, kafka_part), time.time() * 1000, seconds
        )
    finally:
        await reader.stop()


async def _result(server: str, reading: Awaitable[T], seconds: float) -> T | ProjectorError:
    try:
        async with asyncio.timeout(seconds):
            return await reading
    except TimeoutError:
        return Unavailable(f"{server} does not answer within {seconds:g} s")
    except ProjectorError as error:
        return error


async def _with_silent_shards(error: Unavailable, store: Store) -> Unavailable:
    """Returns an error that says which shards do not answer, if that can be found out."""
    found = await _result("Redis", store.silent_shards(), FIRST_SECONDS)
    if isinstance(found, ProjectorError) or not found[0]:
        return error
    silent, shards = found
    return Unavailable(f"{len(silent)} of its {shards} shards do not answer: {', '.join(silent)} ({error})")


async def _read_redis(store: Store) -> RedisPart:
    record = await copies.read(store)
    memories = [Memory.of(fields) for fields in await store.memories()]
    dead_letters = await store.ask_one(b"HLEN", names.DEAD_LETTERS)
    servers = await store.servers_of(record.copies) if record else {}
    others = await copies.other_layouts(store)
    return RedisPart(record, dead_letters, memories, await writers.read(store), servers, others)


async def _read_kafka(reader: Reader) -> KafkaPart:
    topics = await reader.topics()
    served = [it for topic in topics for it in topic.partitions if it.partition not in topic.leaderless]
    return KafkaPart(topics, await reader.range(served))


async def _oldest(
    reader: Reader, redis: RedisPart | ProjectorError, kafka: KafkaPart | ProjectorError
) -> dict[Partition, int] | None:
    if isinstance(redis, ProjectorError) or isinstance(kafka, ProjectorError):
        return None
    waiting = _waiting(redis, kafka)
    times = await _result("Kafka", reader.first_times(waiting), _OLDEST_SECONDS) if waiting else {}
    return None if isinstance(times, ProjectorError) else times


def _waiting(redis: RedisPart, kafka: KafkaPart) -> dict[Partition, tuple[int, int]]:
    found = {}
    for partition, (first, last) in kafka.ranges.items():
        position = redis.position(partition)
        at = max(position.offset if position else first, first)
        if at < last:
            found[partition] = (at, last)
    return found
