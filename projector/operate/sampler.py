"""Takes samples of Kafka and Redis, with connections of its own: nothing that a line does or waits for delays them."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import TypeVar

from projector import defect
from projector.errors import ProjectorError, Refused, Unavailable
from projector.kafka.reader import Reader
from projector.ledger import copies, writers
from projector.operate.sample import KafkaSample, RedisSample, Sample
from projector.record import Partition
from projector.redis.store import Store
from projector.stop import Stop
from schemas import names
from schemas.resources import KINDS
from schemas.settings import ProjectorSettings

SAMPLE_SECONDS = 2.0
_TOPICS_SECONDS = 6.0
"""How often the list of topics and their retention are read again."""
_PATIENCE_SECONDS = 5.0
_PEEK_BYTES = 262_144
"""Of the records that wait, only the time of the first one is wanted."""

T = TypeVar("T")


class Sampler:
    """Takes a sample every two seconds, and gives each one to `taken`."""

    def __init__(self, settings: ProjectorSettings, taken: Callable[[Sample], None]) -> None:
        self._settings = settings
        self._taken = taken
        self._store = Store(settings)
        self._reader: Reader | None = None
        self._peeker: Reader | None = None
        self._topics: tuple[float, KafkaSample] | None = None
        self._first_times: dict[tuple[Partition, int], int] = {}

    async def run(self, stop: Stop) -> None:
        """Repeat until `stop` is set."""
        try:
            while not stop.is_set():
                self._taken(await self.take())
                await stop.sleep(SAMPLE_SECONDS)
        finally:
            await self.close()

    async def close(self) -> None:
        await self._close_readers()
        await self._store.close()

    async def take(self) -> Sample:
        """Returns a sample. Whatever cannot be read within a few seconds is the reason, in words."""
        taken_at = int(time.time() * 1000)
        # The end offsets first: otherwise records that are published in between would count as lag.
        kafka = await _within_patience(self._kafka, "Kafka")
        if isinstance(kafka, str):
            await self._close_readers()
        redis = await _within_patience(self._redis, "Redis")
        sample = Sample(taken_at, time.monotonic(), kafka, redis)
        waiting = {partition: (at, end) for partition, (at, end) in (sample.waiting or {}).items() if at < end}
        times = await _within_patience(lambda: self._times(waiting), "Kafka")
        known = {} if isinstance(times, str) else times
        return Sample(taken_at, time.monotonic(), kafka, redis, known)

    async def _kafka(self) -> KafkaSample:
        if self._reader is None:
            self._reader = await _started(Reader(self._settings, KINDS))
        now = time.monotonic()
        if self._topics is None or now - self._topics[0] > _TOPICS_SECONDS:
            self._topics = now, KafkaSample(await self._reader.topics(), {})
        topics = self._topics[1].topics
        ranges = await self._reader.range([partition for topic in topics for partition in topic.partitions])
        return KafkaSample(topics, ranges)

    async def _redis(self) -> RedisSample:
        record = await copies.read(self._store)
        dead_letters = await self._store.ask_one(b"HLEN", names.DEAD_LETTERS)
        evicts = None
        try:
            await self._store.check_policy()
        except Refused as error:
            evicts = str(error)
        ratio = await self._store.memory_ratio()
        return RedisSample(record, int(dead_letters), ratio, evicts, await writers.read(self._store))

    async def _times(self, waiting: Mapping[Partition, tuple[int, int]]) -> dict[Partition, int]:
        """Returns the times of the first records of these ranges, which are asked only if a position has moved."""
        unknown = {p: span for p, span in waiting.items() if (p, span[0]) not in self._first_times}
        known = {(p, at): self._first_times[p, at] for p, (at, _) in waiting.items() if p not in unknown}
        self._first_times = known
        if unknown:
            if self._peeker is None:
                self._peeker = await _started(Reader(self._settings, KINDS, _PEEK_BYTES))
            found = await self._peeker.first_times(unknown)
            self._first_times |= {(p, unknown[p][0]): at for p, at in found.items()}
        return {partition: at for (partition, _), at in self._first_times.items()}

    async def _close_readers(self) -> None:
        """Let the next sample open new connections: a connection that does not answer may be broken."""
        closing = [reader for reader in (self._reader, self._peeker) if reader]
        self._reader = self._peeker = self._topics = None
        for reader in closing:
            with suppress(Unavailable, TimeoutError):
                async with asyncio.timeout(_PATIENCE_SECONDS):
                    await reader.stop()


async def _started(reader: Reader) -> Reader:
    await reader.start()
    return reader


async def _within_patience(read: Callable[[], Awaitable[T]], what: str) -> T | str:
    """Returns what was read, or why it could not be read."""
    try:
        async with asyncio.timeout(_PATIENCE_SECONDS):
            return await read()
    except TimeoutError:
        return f"{what} has not answered for {_PATIENCE_SECONDS:.0f} s"
    except ProjectorError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 - the projector must not end because it cannot be measured
        return defect.report("a sample", error)
