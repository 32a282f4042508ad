"""A peer: Quix Streams with its Redis sink, as its documentation shows it: one StreamingDataFrame for each topic, with
JSON as input and output.

`python quix_streams.py <kafka> <redis host> <redis port> <topics> <records> <group>`, with commas between the topics,
and with a Python that has `quixstreams[redis]` (`make bench-quix` installs it; Leadview does not depend on it). Like
Leadview, it maps the event to a document. Unlike Leadview, it compares no versions and puts no contact into leads. It
writes at each checkpoint, by default every five seconds, so nothing is visible sooner.
"""

import logging
import sys
import time
from typing import Any

import orjson
from quixstreams import Application
from quixstreams.sinks.base import SinkBatch
from quixstreams.sinks.community.redis import RedisSink


class TimedSink(RedisSink):  # type: ignore[misc]  # not installed where mypy runs
    """Counts the written records, and notes the time of the last write."""

    records = 0
    ended = 0.0

    def write(self, batch: SinkBatch) -> None:
        super().write(batch)
        self.records += batch.size
        self.ended = time.monotonic()


def main(kafka: str, host: str, port: int, topics: list[str], count: int, group: str) -> None:
    began: list[float] = []

    def note(*_: object) -> None:
        if not began:
            began.extend((time.monotonic(), time.process_time()))

    application = Application(
        broker_address=kafka,
        consumer_group=group,
        auto_offset_reset="earliest",
        auto_create_topics=False,
        on_message_processed=note,
        loglevel=logging.WARNING,
    )
    sink = TimedSink(host=host, port=port, db=0, key_serializer=lambda _, document: document["id"])
    for name in topics:
        topic = application.topic(name, value_deserializer="json")
        application.dataframe(topic).apply(document_of).sink(sink)
    application.run(count=count, collect=False)
    figures = {
        "records": sink.records,
        "seconds": sink.ended - began[0],
        "cpu_seconds": time.process_time() - began[1],
    }
    sys.stdout.write(orjson.dumps(figures).decode() + "\n")


def document_of(event: dict[str, Any]) -> dict[str, Any]:
    """The document: the state of the entity, without its version."""
    return {name: value for name, value in event["data"].items() if name != "version"}


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4].split(","), int(sys.argv[5]), sys.argv[6])
