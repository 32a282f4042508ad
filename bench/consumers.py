"""The programs that consume from Kafka, each as a process: the projector as it is delivered, and its peers and limits
(`bench/peers`): how they are started, how far they are, and what they cost."""

import os
import sys
import time
from collections.abc import Sequence
from uuid import uuid4

import psutil
from msgspec import Struct
from redis import Redis

from bench.benchmark import LEADVIEW, Lab, Metric, Subject, Values, client
from bench.crm import PREFIX
from bench.load import reported
from bench.machine import pinned
from bench.servers import cpu_seconds
from devstack.apache_kafka import ApacheKafka
from devstack.child import Child
from devstack.ports import free_port
from devstack.programs import PROJECTOR, ROOT, Program, environment, while_running
from devstack.redis_server import RedisServer
from devstack.waiting import wait_until
from schemas import names
from schemas.resources import BY_TOPIC, RESOURCES
from schemas.settings import Compression

RATE = Metric("rate", "records/s")
CPU = Metric("CPU per record", "µs")
REDIS_CPU = Metric("Redis CPU per record", "µs")
METRICS = (RATE, CPU, REDIS_CPU)
PROJECTING = Subject(LEADVIEW, "leadview", "`python -m projector run`")
PLAIN_SET = Subject("plain-set", "limit", "getmany, decode, SET of the same bytes in pipelines")
ONE_AT_A_TIME = Subject("one-at-a-time", "peer", "`async for`, awaits each write, until Redis holds the same documents")
PARTITIONS = 4
"""Of each topic."""
DOCUMENT_TOPICS = tuple(resource.topic for resource in RESOURCES)
GROUP = "bench"
_APPLIED_SECONDS = 600.0
_STARTED_SECONDS = 120.0


class Topics(Struct, frozen=True):
    """Topics with this prefix. `count` is the number of records of leads and contacts in all of them."""

    kafka: str
    count: int
    prefix: str = PREFIX


def create_topics(kafka: ApacheKafka, prefix: str = PREFIX) -> None:
    """Create all topics."""
    for topic in BY_TOPIC:
        kafka.create_topic(prefix + topic, PARTITIONS)


def start_projector(
    lab: Lab,
    kafka: str,
    redis_url: str,
    words: Sequence[str] = ("run",),
    *,
    cores: set[int] | None,
    prefix: str = PREFIX,
    group: str = GROUP,
    compression: Compression = "none",
) -> Program:
    """Start `python -m projector <words>`. Nothing else is set."""
    variables = environment(
        redis_url=redis_url,
        kafka_bootstrap_servers=kafka,
        group_id=group,
        topic_prefix=prefix,
        compression=compression,
        metrics_port=free_port(),
    )
    with pinned(cores):
        return Program([*PROJECTOR, *words], log=lab.directory / f"projector-{words[0]}.log", environment=variables)


def start_peer(
    lab: Lab,
    peer: Subject,
    topics: Topics,
    redis: RedisServer,
    cores: set[int] | None,
    *,
    follow: bool = False,
) -> Child:
    """Start a peer. It ends with its figures after all that Kafka has now, or never (`follow`)."""
    module = f"bench.peers.{peer.name.replace('-', '_')}"
    command = [sys.executable, "-m", module, topics.kafka, redis.url, topics.prefix, str(PARTITIONS)]
    variables = {**os.environ, **({"FOLLOW": "1"} if follow else {})}
    with pinned(cores):
        return Child(command, log=lab.directory / f"{peer.name}.log", directory=ROOT, environment=variables, piped=True)


def covered(redis: Redis, prefix: str = PREFIX) -> int:
    """The number of records with documents (not organizations or keys) that are covered by a checkpoint."""
    fields = [names.position(prefix + topic, number) for topic in DOCUMENT_TOPICS for number in range(PARTITIONS)]
    values: list[bytes | None] = redis.hmget(names.CONTROL, fields)  # type: ignore[assignment]
    return sum(int(value.split()[0]) for value in values if value)


def measure(
    lab: Lab, topics: Topics, server: RedisServer, cores: set[int] | None, compression: Compression = "none"
) -> Values:
    """Run one projector until all records of these topics are applied. The positions in Redis say where it begins.

    Returns `METRICS`, from the first checkpoint to the last: starting and joining the consumer group do not count.
    Raises ServerFailed if it cannot apply them.
    """
    child = start_projector(
        lab, topics.kafka, server.url, cores=cores, prefix=topics.prefix, group=uuid4().hex, compression=compression
    )
    with child, client(server) as redis:
        projector, redis_server = psutil.Process(child.pid), psutil.Process(server.pid)
        begun = while_running(child, lambda: covered(redis, topics.prefix))
        wait_until(begun, "the projector has begun", _STARTED_SECONDS)
        done_before = covered(redis, topics.prefix)
        began_at, cpu, redis_cpu = time.monotonic(), cpu_seconds([projector]), cpu_seconds([redis_server])
        done = while_running(child, lambda: covered(redis, topics.prefix) >= topics.count)
        wait_until(done, f"the projector has applied {topics.count} records", _APPLIED_SECONDS)
        records = topics.count - done_before
        if not records:  # a quick run may have a single checkpoint
            return {}
        return {
            RATE.name: records / (time.monotonic() - began_at),
            CPU.name: (cpu_seconds([projector]) - cpu) / records * 1e6,
            REDIS_CPU.name: (cpu_seconds([redis_server]) - redis_cpu) / records * 1e6,
        }


class _Figures(Struct):
    """What a peer prints when it ends (`bench/peers/consuming.py`)."""

    records: int
    seconds: float
    cpu_seconds: float


def measure_peer(lab: Lab, peer: Subject, topics: Topics, redis: RedisServer, cores: set[int] | None) -> Values:
    """Measure one process of a peer. Raises ServerFailed."""
    with start_peer(lab, peer, topics, redis, cores) as child:
        figures = reported(child, _Figures)
    if not figures.records:  # a quick run may have a single batch
        return {}
    return {RATE.name: figures.records / figures.seconds, CPU.name: figures.cpu_seconds / figures.records * 1e6}
