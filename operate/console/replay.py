"""How far the replay of a rebuild is: read from its ledger in Redis, no matter which process runs it."""

import time

import msgspec

from operate.rebuild.replay import Rebuild, progress
from projector.health.observe import Observation
from projector.line.pace import slowest
from projector.redis.store import Store
from schemas import names
from schemas.control import GenerationId, number_of


class Replayed(msgspec.Struct, frozen=True):
    """The progress of a replay in records. `left` is in seconds; None while it is not known.

    `processes` share the replay; if it is 0, nothing continues it. `latency` is the p99 of the API in ms that the
    replay looks at: while it is high, it pauses. It is None if the API answers nobody.
    """

    generation: int
    done: int
    total: int
    left: float | None
    processes: int
    latency: float | None


class ReplayReader:
    """Reads the progress again and again, and knows the rate from that."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._began: tuple[GenerationId, float, int] | None = None

    async def take(self, found: Observation) -> Replayed | None:
        """Returns the progress; None if nothing is being replayed, or if it cannot be read. Raises Unavailable."""
        if found.redis is None or found.kafka is None:
            return None
        record = found.redis.record
        if not record or not record.state.next or record.is_complete(record.state.next):
            self._began = None
            return None
        generation = record.state.next
        fields = [names.target(*partition) for partition in found.kafka.ranges]
        targets = await self._store.ask_one(b"HMGET", names.rebuild(generation), *fields)
        ranges = {
            partition: (first, max(first, int(target)))
            for (partition, (first, _)), target in zip(found.kafka.ranges.items(), targets, strict=True)
            if target
        }
        topics = [partition.topic for partition in ranges]
        replayed = await progress(self._store, Rebuild(generation, ranges), topics, record)
        rate = self._rate(generation, replayed.done)
        processes = sum(writer.alive and writer.heartbeat.role == "rebuild" for writer in found.redis.writers)
        left = replayed.left / rate if rate and processes else None
        latency = 1000 * await slowest(self._store) or None
        return Replayed(number_of(generation), replayed.done, replayed.total, left, processes, latency)

    def _rate(self, generation: GenerationId, done: int) -> float | None:
        now = time.monotonic()
        if not self._began or self._began[0] != generation or done < self._began[2]:
            self._began = generation, now, done
        _, since, first = self._began
        return (done - first) / (now - since) if now > since else None
