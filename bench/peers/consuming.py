"""What the consuming peers share: a part of the topics from their beginning, without a group, and what is printed in
the end.

`python -m bench.peers.<peer> <kafka> <redis> <topic prefix> <partitions> <part>/<parts>`: of all partitions, this part.
At most so many records as the environment's MOST says.
"""

import json
import os
import sys
import time
from math import inf

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Struct


class Share(Struct, frozen=True):
    """What this process consumes."""

    kafka: str
    redis: str
    prefix: str
    partitions: int
    part: int
    parts: int

    @property
    def assigned(self) -> list[TopicPartition]:
        topics = [f"{self.prefix}{kind}" for kind in ("leads", "contacts")]
        every = [TopicPartition(topic, number) for topic in topics for number in range(self.partitions)]
        return every[self.part :: self.parts]


def share() -> Share:
    """As the command line says."""
    kafka, redis, prefix, partitions, part = sys.argv[1:]
    number, _, parts = part.partition("/")
    return Share(kafka, redis, prefix, int(partitions), int(number), int(parts))


async def consumer(mine: Share) -> tuple[AIOKafkaConsumer, "Clock"]:
    """One that stands at the beginning of its partitions, and a clock for all that they hold."""
    found = AIOKafkaConsumer(bootstrap_servers=mine.kafka, enable_auto_commit=False)
    await found.start()
    found.assign(mine.assigned)
    await found.seek_to_beginning(*mine.assigned)
    ends = await found.end_offsets(mine.assigned)
    return found, Clock(sum(ends.values()))


class Clock:
    """Times a number of records, from the first batch on. `wanted` is bounded by MOST."""

    def __init__(self, wanted: int) -> None:
        self.wanted = min(wanted, float(os.environ.get("MOST", inf)))
        self.done = 0
        self._began: tuple[float, float, int] | None = None

    def add(self, records: int) -> bool:
        """Note records that are written; true when all are."""
        self.done += records
        if self._began is None:
            self._began = (time.monotonic(), time.process_time(), self.done)
        return self.done >= self.wanted

    def print(self) -> None:
        """`began` and `ended` are on a clock that all processes share."""
        began = self._began or (0.0, 0.0, 0)
        figures = {
            "records": self.done - began[2],
            "began": began[0],
            "ended": time.monotonic(),
            "cpu_seconds": time.process_time() - began[1],
        }
        sys.stdout.write(json.dumps(figures) + "\n")
