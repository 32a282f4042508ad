"""Processes of the projector as it is delivered: how they are started, how far they are, and what they cost."""

import os
import sys
import time
from collections.abc import Sequence
from uuid import uuid4

import psutil
from redis import Redis

from bench.benchmark import MeasurementFailed, Metric, Values
from bench.consuming_peers import CPU, RATE, Topics
from bench.cores import pinned
from bench.lab import Lab, client
from bench.server import ROOT, cpu_seconds
from bench.traffic import PREFIX
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.redis_server import RedisServer
from schemas import names
from schemas.resources import BY_TOPIC, RESOURCES
from schemas.settings import Compression

REDIS_CPU = Metric("Redis CPU per record", "µs")
METRICS = (RATE, CPU, REDIS_CPU)

DOCUMENT_TOPICS = tuple(resource.topic for resource in RESOURCES)
GROUP = "bench"
_TIMEOUT_SECONDS = 600.0
_POLL_SECONDS = 0.005


def start(
    lab: Lab,
    kafka: str,
    redis_url: str,
    words: Sequence[str] = ("run",),
    *,
    cores: set[int] | None,
    prefix: str = PREFIX,
    group: str = GROUP,
    metrics_port: int | None = None,
    compression: Compression = "none",
) -> Child:
    """Start `python -m projector <words>`. Nothing else is set."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("LEADVIEW_")}
    environment |= {"LEADVIEW_REDIS_URL": redis_url, "LEADVIEW_KAFKA_BOOTSTRAP_SERVERS": kafka}
    environment |= {"LEADVIEW_GROUP_ID": group, "LEADVIEW_TOPIC_PREFIX": prefix, "PYTHONPATH": str(ROOT)}
    environment |= {"LEADVIEW_COMPRESSION": compression}
    environment |= {"LEADVIEW_METRICS_PORT": str(metrics_port)} if metrics_port else {}
    with pinned(cores):
        return Child(
            [sys.executable, "-m", "projector", *words],
            log=lab.directory / f"projector-{words[0]}.log",
            environment=environment,
        )


def create_topics(kafka: ApacheKafka, partitions: int, prefix: str = PREFIX) -> None:
    """Create all topics, each with this number of partitions."""
    for topic in BY_TOPIC:
        kafka.create_topic(prefix + topic, partitions)


def covered(redis: Redis, partitions: int, prefix: str = PREFIX) -> int:
    """The number of records with documents (not organizations or keys) that are covered by a checkpoint."""
    fields = [names.position(prefix + topic, number) for topic in DOCUMENT_TOPICS for number in range(partitions)]
    values: list[bytes | None] = redis.hmget(names.CONTROL, fields)  # type: ignore[assignment]
    return sum(int(value.split()[0]) for value in values if value)


def measure(
    lab: Lab, topics: Topics, server: RedisServer, cores: set[int] | None, compression: Compression = "none"
) -> Values:
    """Run one process until all records of these topics are applied. The positions in Redis say where it begins.

    Returns `METRICS`, from the first checkpoint to the last: starting and joining the consumer group do not count.
    Raises MeasurementFailed.
    """
    child = start(
        lab, topics.kafka, server.url, cores=cores, prefix=topics.prefix, group=uuid4().hex, compression=compression
    )
    try:
        with client(server) as redis:
            return _from_first_to_last_checkpoint(child, server, redis, topics)
    finally:
        child.stop()


def _from_first_to_last_checkpoint(child: Child, server: RedisServer, redis: Redis, topics: Topics) -> Values:
    projector, redis_server = psutil.Process(child.pid), psutil.Process(server.pid)
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    began: tuple[float, float, float, int] | None = None
    while (done := covered(redis, topics.partitions, topics.prefix)) < topics.count:
        if done and began is None:
            began = (time.monotonic(), cpu_seconds([projector]), cpu_seconds([redis_server]), done)
        if time.monotonic() > deadline:
            raise MeasurementFailed(f"the projector did not apply {topics.count} records in {_TIMEOUT_SECONDS:g} s")
        time.sleep(_POLL_SECONDS)
    if began is None:
        return {}
    began_at, cpu, redis_cpu, done_before = began
    records = done - done_before
    return {
        RATE.name: records / (time.monotonic() - began_at),
        CPU.name: (cpu_seconds([projector]) - cpu) / records * 1e6,
        REDIS_CPU.name: (cpu_seconds([redis_server]) - redis_cpu) / records * 1e6,
    }
