"""What the peers that consume from Kafka have in common: reading a share of all partitions, and printing the figures.

`python -m bench.peers.<peer> <kafka> <redis> <topic prefix> <partitions> <number>/<processes>`. Each of the processes
reads its share of the partitions from their beginning, without a consumer group. The environment variable MOST_RECORDS
bounds the number of records. With FOLLOW, it never ends, and prints nothing.
"""

import json
import os
import sys
import time
from math import inf

from aiokafka import AIOKafkaConsumer, TopicPartition
from msgspec import Struct

from schemas.resources import RESOURCES


class Share(Struct, frozen=True):
    """What this process consumes."""

    kafka: str
    redis: str
    prefix: str
    partitions: int
    number: int
    processes: int

    @property
    def assigned(self) -> list[TopicPartition]:
        topics = [f"{self.prefix}{resource.topic}" for resource in RESOURCES]
        everything = [TopicPartition(topic, partition) for topic in topics for partition in range(self.partitions)]
        return everything[self.number :: self.processes]


def share_of_arguments() -> Share:
    """The share that the command line names."""
    kafka, redis, prefix, partitions, share = sys.argv[1:]
    number, _, processes = share.partition("/")
    return Share(kafka, redis, prefix, int(partitions), int(number), int(processes))


async def start_consumer(share: Share) -> tuple[AIOKafkaConsumer, "Clock"]:
    """Returns a consumer at the beginning of its partitions, and a clock for all their records."""
    consumer = AIOKafkaConsumer(bootstrap_servers=share.kafka, enable_auto_commit=False)
    await consumer.start()
    consumer.assign(share.assigned)
    await consumer.seek_to_beginning(*share.assigned)
    end_offsets = await consumer.end_offsets(share.assigned)
    return consumer, Clock(sum(end_offsets.values()))


class Clock:
    """Measures the time for a number of records, from the first batch on. MOST_RECORDS and FOLLOW change `expected`."""

    def __init__(self, expected: int) -> None:
        self.expected = inf if "FOLLOW" in os.environ else min(expected, float(os.environ.get("MOST_RECORDS", inf)))
        self.done = 0
        self._began: tuple[float, float, int] | None = None

    def add(self, records: int) -> bool:
        """Count records that are written. Returns whether all of them are."""
        self.done += records
        if self._began is None:
            self._began = (time.monotonic(), time.process_time(), self.done)
        return self.done >= self.expected

    def print(self) -> None:
        """Print the figures as JSON. `began` and `ended` are from a clock that all processes share."""
        began = self._began or (0.0, 0.0, 0)
        figures = {
            "records": self.done - began[2],
            "began": began[0],
            "ended": time.monotonic(),
            "cpu_seconds": time.process_time() - began[1],
        }
        sys.stdout.write(json.dumps(figures) + "\n")
