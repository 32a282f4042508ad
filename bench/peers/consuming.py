"""What both consuming peers share: the topics from their beginning, without a group, and what is printed at the end."""

import json
import sys
import time

from aiokafka import AIOKafkaConsumer, TopicPartition

TOPICS = ("crm.leads", "crm.contacts")
PARTITIONS = 4


async def consumer(bootstrap_servers: str) -> AIOKafkaConsumer:
    """One that stands at the beginning of every partition."""
    found = AIOKafkaConsumer(bootstrap_servers=bootstrap_servers, enable_auto_commit=False)
    await found.start()
    partitions = [TopicPartition(topic, number) for topic in TOPICS for number in range(PARTITIONS)]
    found.assign(partitions)
    await found.seek_to_beginning(*partitions)
    return found


class Clock:
    """Times a number of records, from the first batch on."""

    def __init__(self, wanted: int) -> None:
        self.wanted = wanted
        self.done = 0
        self._began: tuple[float, float, int] | None = None

    def add(self, records: int) -> bool:
        """Note records that are written; true when all are."""
        self.done += records
        if self._began is None:
            self._began = (time.perf_counter(), time.process_time(), self.done)
        return self.done >= self.wanted

    def print(self) -> None:
        began = self._began or (0.0, 0.0, 0)
        figures = {
            "records": self.done - began[2],
            "seconds": time.perf_counter() - began[0],
            "cpu_seconds": time.process_time() - began[1],
        }
        sys.stdout.write(json.dumps(figures) + "\n")
