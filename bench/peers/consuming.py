"""What the peers that consume from Kafka have in common: reading all partitions, and printing the figures.

`python -m bench.peers.<peer> <kafka> <redis> <topic prefix> <partitions>` reads the partitions from their beginning,
without a consumer group. With the environment variable FOLLOW, it never ends, and prints nothing.
"""

import os
import sys
import time
from math import inf

import orjson
from aiokafka import AIOKafkaConsumer, TopicPartition

from schemas.resources import RESOURCES


async def start_consumer(kafka: str, prefix: str, partitions: str) -> tuple[AIOKafkaConsumer, "Clock"]:
    """Returns a consumer at the beginning of all partitions, and a clock for all their records."""
    topics = [f"{prefix}{resource.topic}" for resource in RESOURCES]
    assigned = [TopicPartition(topic, partition) for topic in topics for partition in range(int(partitions))]
    consumer = AIOKafkaConsumer(bootstrap_servers=kafka, enable_auto_commit=False)
    await consumer.start()
    consumer.assign(assigned)
    await consumer.seek_to_beginning(*assigned)
    end_offsets = await consumer.end_offsets(assigned)
    return consumer, Clock(sum(end_offsets.values()))


class Clock:
    """Measures the time for a number of records, from the first batch on."""

    def __init__(self, expected: int) -> None:
        self.expected = inf if "FOLLOW" in os.environ else expected
        self.done = 0
        self._began: tuple[float, float, int] | None = None

    def add(self, records: int) -> bool:
        """Count records that are written. Returns whether all of them are."""
        self.done += records
        if self._began is None:
            self._began = (time.monotonic(), time.process_time(), self.done)
        return self.done >= self.expected

    def print(self) -> None:
        """Print the figures as JSON."""
        began_at, cpu, before = self._began or (0.0, 0.0, 0)
        figures = {
            "records": self.done - before,
            "seconds": time.monotonic() - began_at,
            "cpu_seconds": time.process_time() - cpu,
        }
        sys.stdout.buffer.write(orjson.dumps(figures) + b"\n")
