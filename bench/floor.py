"""The floor of freshness: `plain-set` writes each record of topics of its own into a Redis of its own, and a bare ASGI
server (`bench/peers/plain_read.py`) returns it. Nothing between Kafka and an HTTP client can do less.

It is not Leadview's API that reads these documents, because that would need its key, access and control records, and
would do more than the least.
"""

import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack

from msgspec import Struct
from msgspec.structs import replace

from bench import probing, server, traffic
from bench.benchmark import Subject
from bench.cores import pinned
from bench.pipeline import PARTITIONS, Pipeline
from bench.prober import Event, Report
from bench.server import ROOT
from devstack import topics
from devstack.child import Child
from devstack.ports import free_port
from projector.record import Record
from schemas.resources import RESOURCES

FLOOR = Subject("plain-set-and-get", "limit", "getmany, decode, SET; bare ASGI that returns what GET finds")
_PREFIX = "floor."


class Floor(Struct, frozen=True):
    """A running floor beside a running service."""

    service: Pipeline

    def probe(self, events: Sequence[Event], rate: float) -> Report:
        """Send these events to the topics of the floor, and measure the probed ones there. Raises MeasurementFailed."""
        return probing.probe(self.service, [_of_floor(event) for event in events], rate)


def start(stack: ExitStack, service: Pipeline, record: Record) -> Floor:
    """Start the floor on the machine and with the Kafka of the service, and wait until it serves this record.

    `stack` stops it. Raises TimeoutError.
    """
    lab, cores = service.lab, service.cores
    for resource in RESOURCES:
        topics.create_topic(service.kafka, _PREFIX + resource.topic, PARTITIONS, replicas=1, compacted=True)
    redis = lab.redis(stack, "floor-redis", cores)
    command = [sys.executable, "-m", "bench.peers.plain_set", service.kafka, redis.url, _PREFIX, str(PARTITIONS), "0/1"]
    with pinned(cores.load):
        consumer = Child(
            command, log=lab.directory / "floor.log", directory=ROOT, environment={**os.environ, "FOLLOW": "1"}
        )
    stack.callback(consumer.stop)
    port = free_port()
    command = [sys.executable, "-m", "bench.peers.plain_read", str(port), str(redis.port), "1"]
    reading = server.start(stack, command, port, cores=cores.worker, log=lab.directory / "floor-api.log")
    traffic.publish(service.kafka, [record], _PREFIX)
    reading.wait_until_ready(_request(record.key or b""))
    return Floor(replace(service, api=reading))


def _of_floor(event: Event) -> Event:
    request = event.request and _request(event.key)
    return replace(event, topic=_PREFIX + event.topic.removeprefix(traffic.PREFIX), request=request)


def _request(key: bytes) -> bytes:
    return b"GET /%b HTTP/1.1\r\nHost: api.example.com\r\n\r\n" % key
